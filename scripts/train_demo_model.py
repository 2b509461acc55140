#!/usr/bin/env python3
"""Train the small mixture-of-experts language model that `models/` ships.

The model is a byte-level OLMoE (a token is a byte), trained on the King James Bible as
Debian's `bible` program prints it. One command makes the text:

    sudo apt-get install bible-kjv bible-kjv-text
    bible -l 9999 gen1:1-rev22:21 > kjv.txt

and one trains the model (PyTorch, transformers >= 5, one GPU):

    python3 scripts/train_demo_model.py --text kjv.txt --out models/kjv-olmoe-8m

`--out` receives the Hugging Face checkpoint (`config.json`, `model.safetensors`), the training
log (`training-log.csv`), the figures of the run (`training.json`) and the held-out books
(`heldout.txt`). `--split-only` writes the held-out books and stops; `--plot LOG --image FILE`
draws the loss curve (matplotlib).
"""

import argparse
import contextlib
import csv
import hashlib
import json
import math
import re
import sys
import time
from pathlib import Path

import torch
import transformers
from transformers import OlmoeConfig, OlmoeForCausalLM
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

# The text as version 4.38 of Debian's packages prints it.
TEXT_SHA256 = "6f74f5589333c56c263963e6347dba662bae2d96861302e690aaae0b4a855eda"

# Whole books, so that no sentence of a test book is ever seen in training. Kings and Chronicles,
# or the first three Gospels, retell each other; these books retell none. Daniel and Hosea stand
# next to each other, are story, vision and verse, and are a little harder than the average book.
HELD_OUT = ("Daniel", "Hosea")
# The checkpoint is chosen on other books, one from each part of the text: a story, a prophet
# and a letter. The held-out books take no part in any choice.
VALIDATION = ("Esther", "Amos", "Galatians")

# The arguments that decide the run's result, for its record.
SETTINGS = (
    *("steps", "seed", "batch", "context", "lr", "decay", "dropout", "warmup"),
    *("layers", "heads", "kv_heads", "experts", "top_k"),
    *("teachers", "student_steps", "soft"),
)

HEADING = re.compile(rb"^\n((?:[1-3] )?[A-Z][A-Za-z ]+) [0-9]+\n\n", re.MULTILINE)


def books_of(text):
    """The text's books in order: {name: bytes}. Every chapter starts with a heading."""
    headings = list(HEADING.finditer(text))
    if not headings or headings[0].start() != 0:
        sys.exit("the text does not start with a chapter heading: see --help for how to make it")
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    books = {}
    for heading, end in zip(headings, ends, strict=True):
        name = heading[1].decode()
        books[name] = books.get(name, b"") + text[heading.start() : end]
    return books


def split_text(path):
    """Train, validation and held-out bytes of the text file."""
    text = path.read_bytes()
    if hashlib.sha256(text).hexdigest() != TEXT_SHA256:
        print(f"warning: {path} is not the text of bible-kjv-text 4.38", file=sys.stderr)
    books = books_of(text)
    missing = [name for name in HELD_OUT + VALIDATION if name not in books]
    if missing:
        sys.exit(f"{path}: no book named {', '.join(missing)}")
    train = (body for name, body in books.items() if name not in HELD_OUT + VALIDATION)
    return {
        "train": b"".join(train),
        "validation": b"".join(books[name] for name in VALIDATION),
        "heldout": b"".join(books[name] for name in HELD_OUT),
    }


def read_log(path):
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: [float(row[name]) for row in rows] for name in rows[0]}


def plot(log_path, image):
    """Draw bits per byte against the step."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    log = read_log(log_path)
    figure, axes = plt.subplots(figsize=(7.2, 4.0), dpi=150, layout="constrained")
    axes.plot(
        log["step"],
        log["batch_bpb"],
        color="#9db8d2",
        lw=1.0,
        label="training batches (dropout on)",
    )
    axes.plot(log["step"], log["train_bpb"], color="#1f5a92", lw=1.6, label="training text")
    axes.plot(log["step"], log["val_bpb"], color="#c8501e", lw=1.6, label="validation books")
    best = min(range(len(log["step"])), key=lambda i: log["val_bpb"][i])
    x, y = log["step"][best], log["val_bpb"][best]
    axes.plot([x], [y], "o", color="#c8501e", ms=5)
    axes.annotate(f"{y:.3f}", (x, y), xytext=(0, 8), textcoords="offset points", ha="right")
    axes.set_xlim(0, log["step"][-1] * 1.01)
    axes.set_ylim(0.9 * min(log["train_bpb"]), min(2.6, max(log["val_bpb"])))
    axes.set_xlabel("training step")
    axes.set_ylabel("bits per byte")
    axes.set_title("Training of the demo model", loc="left", fontsize=11)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    image.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(image)


def make_config(args):
    # Every dimension of a matrix is a multiple of 64 (of 128 where it is summed over), so every
    # group size of the quantized formats fits. The chosen experts' weights are normalised to a
    # sum of one: the layer's scale then does not depend on how sure the router is.
    return OlmoeConfig(
        vocab_size=256,
        hidden_size=256,
        intermediate_size=128,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        num_key_value_heads=args.kv_heads,
        num_experts=args.experts,
        num_experts_per_tok=args.top_k,
        norm_topk_prob=True,
        max_position_embeddings=args.context,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        router_aux_loss_coef=0.01,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        tie_word_embeddings=False,
    )


def dense_experts(self, hidden, chosen, weights):
    """All experts for all tokens, those not chosen weighted by zero.

    The same function and the same gradients as computing only the chosen ones. It does a few
    times the arithmetic, but in two plain matrix products without a sort, a gather or a scatter
    of gradients, which is faster for a model this small.
    """
    tokens = hidden.shape[0]
    routing = hidden.new_zeros(tokens, self.num_experts)
    routing = routing.scatter(1, chosen, weights.to(hidden.dtype))
    gate_up = hidden @ self.gate_up_proj.flatten(0, 1).t()
    gate, up = gate_up.view(tokens, self.num_experts, -1).chunk(2, dim=-1)
    inner = self.act_fn(gate) * up * routing[..., None]
    return inner.flatten(1) @ self.down_proj.transpose(1, 2).flatten(0, 1)


def build_model(args, device):
    """The bf16 model to train, and the list its routers' logits go to at each forward pass."""
    model = OlmoeForCausalLM(make_config(args)).to(device)
    # Only the parameters: the rotary frequencies, a buffer, stay float32.
    for param in model.parameters():
        param.data = param.data.to(torch.bfloat16)
    ALL_EXPERTS_FUNCTIONS.register("dense", dense_experts)
    model.set_experts_implementation("dense")
    router_logits = []

    def drop(module, _, output):
        return torch.nn.functional.dropout(output, args.dropout, module.training)

    def record(module, _, output):
        if module.training:
            router_logits.append(output[0])

    # OLMoE has no dropout on the residual branches; hooks add it without renaming anything.
    model.model.embed_tokens.register_forward_hook(drop)
    for layer in model.model.layers:
        layer.self_attn.o_proj.register_forward_hook(drop)
        layer.mlp.experts.register_forward_hook(drop)
        layer.mlp.gate.register_forward_hook(record)
        if args.compile:
            layer.compile()
    return model, router_logits


def balance_loss(router_logits, top_k):
    """Mean over the layers of experts * sum(share of the tokens * mean probability); 1 is even.

    Taken layer by layer: pooled over the layers, one layer's imbalance could hide another's.
    """
    total = 0.0
    for logits in router_logits:
        probabilities = logits.float().softmax(dim=-1)
        experts = probabilities.shape[-1]
        chosen = probabilities.topk(top_k, dim=-1).indices
        counts = probabilities.new_zeros(experts).scatter_add_(
            0, chosen.flatten(), probabilities.new_ones(chosen.numel())
        )
        share = counts / chosen.numel()
        total = total + experts * (share * probabilities.mean(dim=0)).sum()
    return total / len(router_logits)


def predict(model, windows):
    """Logits, one row for every byte of the windows but the first."""
    hidden = model.model(input_ids=windows[:, :-1], use_cache=False).last_hidden_state
    # In float32: bf16 logits would round the differences that the loss is made of.
    return torch.nn.functional.linear(hidden.float(), model.lm_head.weight.float()).flatten(0, 1)


def byte_losses(logits, windows):
    """Cross entropy of each byte, in nats."""
    return torch.nn.functional.cross_entropy(logits, windows[:, 1:].flatten(), reduction="none")


@torch.no_grad()
def teacher_probabilities(teachers, windows):
    """The mean of the teachers' predictions."""
    return sum(predict(teacher, windows).softmax(dim=-1) for teacher in teachers) / len(teachers)


def epochs(data, args, generator):
    """Endless batches of windows. Each epoch cuts the text from a new phase, in a new order."""
    reach = torch.arange(args.context + 1, device=data.device)
    while True:
        phase = int(torch.randint(args.context, (1,), generator=generator))
        count = (len(data) - phase - 1) // args.context
        order = torch.randperm(count, generator=generator).to(data.device)
        for chunk in order.split(args.batch):
            if len(chunk) == args.batch:
                yield data[phase + chunk[:, None] * args.context + reach].long()


def bits_per_byte(model, data, context):
    """Every byte of `data` but the first is predicted once, in windows of `context` inputs."""

    def total_loss(windows):
        return float(byte_losses(predict(model, windows), windows).sum(dtype=torch.float64))

    total, was_training = 0.0, model.training
    model.eval()
    # Uncompiled: the few batches here, of other shapes, are not worth a compilation each.
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        whole = (len(data) - 1) // context
        starts = torch.arange(whole, device=data.device)[:, None] * context
        reach = torch.arange(context + 1, device=data.device)
        for chunk in (starts + reach).split(16):
            total += total_loss(data[chunk].long())
        rest = data[whole * context :]
        if len(rest) > 1:
            total += total_loss(rest[None].long())
    model.train(was_training)
    return total / math.log(2) / (len(data) - 1)


class Optimizer:
    """AdamW on float32 master weights, with a running average of them for evaluation."""

    def __init__(self, model, args):
        self.args = args
        self.params = list(model.parameters())
        self.masters = [p.detach().float().clone() for p in self.params]
        self.average = [m.clone() for m in self.masters]
        # Norm weights are not decayed.
        groups = [
            {"params": [m for m in self.masters if m.dim() > 1], "weight_decay": args.decay},
            {"params": [m for m in self.masters if m.dim() == 1], "weight_decay": 0.0},
        ]
        fused = self.params[0].is_cuda
        self.adamw = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), fused=fused)

    def rate(self, step, progress):
        """Linear warm-up, then a cosine down to a hundredth of the peak."""
        warm = min(1.0, (step + 1) / self.args.warmup)
        return self.args.lr * warm * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))

    @torch.no_grad()
    def step(self, step, progress):
        for master, param in zip(self.masters, self.params, strict=True):
            master.grad = param.grad.float()
            param.grad = None
        torch.nn.utils.clip_grad_norm_(self.masters, 1.0)
        for group in self.adamw.param_groups:
            group["lr"] = self.rate(step, progress)
        self.adamw.step()
        # The average must forget the start quickly, then span about a thousand steps.
        keep = min(0.999, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.average, self.masters, 1 - keep)
        torch._foreach_copy_(self.params, self.masters)

    @contextlib.contextmanager
    def averaged(self):
        """Puts the averaged weights, rounded to bf16, into the model for a while."""
        with torch.no_grad():
            torch._foreach_copy_(self.params, self.average)
            yield
            torch._foreach_copy_(self.params, self.masters)


def train(args, data, seed, teachers=()):
    """Train one model and return it at its best on the validation books, with its log.

    With teachers, most of what it learns is their mean prediction instead of the byte that
    follows: that tells which other bytes were likely, and over-fits much later.
    """
    torch.manual_seed(seed)
    train_data, val_data = data["train"], data["validation"]
    # As much training text as there is validation text shows the gap between the two.
    train_slice = train_data[: len(val_data)]
    model, router_logits = build_model(args, train_data.device)
    optimizer = Optimizer(model, args)
    batches = epochs(train_data, args, torch.Generator().manual_seed(seed))
    steps = args.student_steps if teachers else args.steps

    log, best, recent, start = [], None, [], time.time()
    step, progress = 0, 0.0
    model.train()
    while progress < 1.0:
        windows = next(batches)
        router_logits.clear()
        logits = predict(model, windows)
        loss = byte_losses(logits, windows).mean()
        goal = loss
        if teachers:
            wanted = teacher_probabilities(teachers, windows)
            soft = torch.nn.functional.cross_entropy(logits, wanted)
            goal = args.soft * soft + (1 - args.soft) * loss
        balance = balance_loss(router_logits, args.top_k)
        (goal + model.config.router_aux_loss_coef * balance).backward()
        optimizer.step(step, progress)
        recent.append(loss.detach())
        step += 1
        if step == 10:
            start = time.time()  # the time leaves compilation out
        progress = max(step / steps, (time.time() - start) / args.seconds)
        if step % args.every and progress < 1.0:
            continue
        with optimizer.averaged():
            row = {
                "step": step,
                "seconds": round(time.time() - start, 1),
                "lr": f"{optimizer.rate(step, progress):.3g}",
                "batch_bpb": round(float(torch.stack(recent).mean()) / math.log(2), 4),
                "train_bpb": round(bits_per_byte(model, train_slice, args.context), 4),
                "val_bpb": round(bits_per_byte(model, val_data, args.context), 4),
                "balance": round(float(balance.detach()), 4),
            }
            if best is None or row["val_bpb"] < best["val_bpb"]:
                best, best_state = row, [p.clone() for p in model.parameters()]
        recent.clear()
        log.append(row)
        print(*(f"{name} {value}" for name, value in row.items()), flush=True)

    with torch.no_grad():
        torch._foreach_copy_(list(model.parameters()), best_state)
    heldout = round(bits_per_byte(model, data["heldout"], args.context), 4)
    figures = {
        "seed": seed,
        "steps": step,
        "seconds": log[-1]["seconds"],
        "best_step": best["step"],
        "train_bpb": best["train_bpb"],
        "validation_bpb": best["val_bpb"],
        "heldout_bpb": heldout,
    }
    print(json.dumps(figures), flush=True)
    return model.eval().requires_grad_(False), log, figures


def train_all(args, texts):
    """The teachers, if any, then the model."""
    start = time.time()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # Every layer of every model is a compilation of its own.
    torch._dynamo.config.recompile_limit = 16 * (args.teachers + 1)
    data = {
        name: torch.frombuffer(bytearray(text), dtype=torch.uint8).to(device)
        for name, text in texts.items()
    }
    runs = [train(args, data, args.seed + 1 + i) for i in range(args.teachers)]
    model, log, figures = train(args, data, args.seed, [run[0] for run in runs])
    record = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "seconds_in_all": round(time.time() - start, 1),
        "text_bytes": {name: len(text) for name, text in texts.items()},
        "arguments": sys.argv[1:],
        "settings": {name: getattr(args, name) for name in SETTINGS},
        "model": figures,
        "teachers": [run[2] for run in runs],
    }
    return model, log, record


def save(args, model, log, record):
    model.save_pretrained(args.out)
    # It would only repeat config.json.
    (args.out / "generation_config.json").unlink(missing_ok=True)
    with (args.out / "training-log.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, log[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(log)
    (args.out / "training.json").write_text(json.dumps(record, indent=2) + "\n")


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--text", type=Path, help="the text, as the command above makes it")
    add("--out", type=Path, help="the folder to write")
    add("--split-only", action="store_true", help="write only OUT/heldout.txt")
    add("--plot", type=Path, metavar="LOG", help="draw the curve of a training-log.csv and stop")
    add("--image", type=Path, help="the image --plot writes (.png, .svg)")
    add("--steps", type=int, default=4400, help="length of a training without teachers")
    add("--seconds", type=float, default=math.inf, help="shorten each training to this time")
    add("--seed", type=int, default=1)
    add("--batch", type=int, default=8, help="windows a step")
    add("--context", type=int, default=2048, help="bytes a window")
    add("--lr", type=float, default=1.4e-3, help="peak learning rate")
    add("--decay", type=float, default=3.0, help="weight decay")
    add("--dropout", type=float, default=0.05, help="on the residual branches")
    add("--teachers", type=int, default=3, help="models trained first, for this one to learn from")
    add("--student-steps", type=int, default=7000, help="steps of a model that has teachers")
    add("--soft", type=float, default=0.8, help="the teachers' share of what it learns")
    add("--warmup", type=int, default=500, help="steps of warm-up")
    add("--every", type=int, default=250, help="steps between two lines of the log")
    add("--layers", type=int, default=6)
    add("--heads", type=int, default=8)
    add("--kv-heads", type=int, default=2)
    add("--experts", type=int, default=12)
    add("--top-k", type=int, default=4)
    add("--compile", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    if bool(args.plot) != bool(args.image):
        parser.error("--plot and --image go together")
    if not args.plot and not (args.text and args.out):
        parser.error("--text and --out are needed")
    return args


def main():
    args = parse_args()
    if args.plot:
        plot(args.plot, args.image)
        return
    texts = split_text(args.text)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "heldout.txt").write_bytes(texts["heldout"])
    if args.split_only:
        return
    save(args, *train_all(args, texts))


if __name__ == "__main__":
    main()
