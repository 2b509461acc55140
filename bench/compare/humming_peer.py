"""humming-kernels as cuda_peers.py times them: weights packed anew, kernels compiled by nvcc in the
background, and the order of pairs that its indexed form takes."""

import concurrent.futures
import math
import os
import time

import torch

BF16 = torch.bfloat16


class Humming:
    """Its kernels for the cases, compiled in the background in the order in which they are asked."""

    def __init__(self, workers, group):
        os.environ.setdefault("HUMMING_DISABLE_PARALLEL_BUILD", "1")
        import humming
        from humming import ops, transform, tune
        from humming.kernel.humming import HummingKernel
        from humming.schema import HummingInputSchema, HummingWeightSchema

        self.version = humming.__version__
        self.group = group
        self.ops, self.transform, self.tune, self.kernel = ops, transform, tune, HummingKernel
        self.schemas = HummingWeightSchema, HummingInputSchema
        self.pool = concurrent.futures.ThreadPoolExecutor(workers)
        self.known = {}
        self.locks = torch.zeros(1 << 16, dtype=torch.int32, device="cuda")

    def layer(self, form, experts, n, k):
        weight, inputs = self.schemas
        words = {"b_dtype": "uint4"}
        if form == "mxfp4":
            words = {"b_dtype": "float4e2m1", "bs_dtype": "float8e8m0"}
        return self.transform.prepare_layer_config(
            shape_n=n, shape_k=k, num_experts=experts or None, torch_dtype=BF16, device=0,
            weight_schema=weight(**words, weight_scale_group_size=self.group[form]),
            input_schema=inputs(a_dtype="bfloat16"),
        )  # fmt: skip

    def prepare(self, form, experts, n, k, rows, kind):
        """Starts to compile what a case needs; `kind` is dense, indexed or grouped_contiguous."""
        key = (form, experts, n, k, rows, kind)
        if key in self.known:
            return
        try:
            layer = self.layer(form, experts, n, k)
            tuning = self.tune.get_heuristics_config(layer, shape_m=rows, gemm_type=kind, device=0)
            parts = self.kernel._resolve_configs(
                layer.to_str(), {"gemm_type": kind}, dict(tuning), 0
            )
            words = parts[0] | parts[1] | parts[2]
            sms = words.pop("num_sms", 0)

            def build():
                with torch.cuda.device(0):
                    return self.kernel(**words)

            self.known[key] = layer, sms, parts[2], self.pool.submit(build)
        except Exception as problem:
            self.known[key] = problem

    def caller(self, key, weights, x, rows, arguments, until):
        found = self.known[key]
        if isinstance(found, Exception):
            raise found
        layer, sms, tuning, building = found
        kernel = building.result(timeout=max(until - time.monotonic(), 0.1))
        sets = [
            self.transform.transform_humming_tensors(
                layer,
                {
                    "weight": w.codes.clone(),
                    "weight_scale": w.scales.view(torch.float8_e8m0fnu)
                    if w.form == "mxfp4"
                    else w.scales,
                },
            )
            for w in weights
        ]
        given = arguments(tuning) if arguments else [{}]
        configs = torch.tensor([0, 1 << 30, kernel.kernel_id, sms], dtype=torch.int64)
        out = torch.full((rows, layer.shape_n), math.nan, dtype=BF16, device="cuda")

        def call(i):
            self.ops.launch_kernel(
                configs=configs, inputs=x, outputs=out, locks=self.locks,
                **sets[i % len(sets)], **given[i % len(given)],
            )  # fmt: skip
            return out

        return call


def aligned(ids, experts, block):
    """humming's indexed form: pairs in the order of their experts, each run filled to blocks."""
    flat = ids.flatten().long()
    pairs = flat.numel()
    counts = torch.bincount(flat, minlength=experts)
    blocks = (counts + block - 1) // block
    total = int(blocks.sum()) * block
    order = torch.argsort(flat, stable=True)
    by = flat[order]
    within = torch.arange(pairs, device="cuda") - (counts.cumsum(0) - counts)[by]
    places = torch.full((total,), pairs, dtype=torch.int32, device="cuda")
    places[((blocks.cumsum(0) - blocks) * block)[by] + within] = order.int()
    of_block = torch.repeat_interleave(torch.arange(experts, device="cuda"), blocks).int()
    padded = torch.tensor(total, dtype=torch.int32, device="cuda")
    return {"sorted_ids": places, "expert_ids": of_block, "num_tokens_padded": padded}
