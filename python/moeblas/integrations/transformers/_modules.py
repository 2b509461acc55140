"""Modules of a model, put in and taken as its own."""

from torch import nn


class TiedHead(nn.Module):
    """A head on the table of the embedding, which alone owns it."""

    def __init__(self, embedding):
        super().__init__()
        self._embedding = [embedding]

    def forward(self, x):
        return self._embedding[0].as_linear(x)


def set_module(model, name, module):
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)
