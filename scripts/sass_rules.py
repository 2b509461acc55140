"""What scripts/check_sass.py demands of the CUDA kernels' machine code: of each kernel the first rule whose
pattern is in its name."""

import dataclasses
import re

LOCAL = r"(LDL|STL)\b"
BULK = r"(UBLKCP|UTMALDG)\b"
WIDE = r"(LDG|LDGSTS)\S*\.128"
HGMMA_REGISTERS = r"HGMMA\S* R\d+, R\d+, "  # the first factor in registers
QGMMA_REGISTERS = r"QGMMA\S* R\d+, R\d+, "
HGMMA_SHARED = r"HGMMA\S* R\d+, gdesc"
NAMES = {
    BULK: "bulk copies",
    WIDE: "16-byte loads",
    HGMMA_REGISTERS: "HGMMA with a register operand",
    QGMMA_REGISTERS: "QGMMA with a register operand",
    HGMMA_SHARED: "HGMMA from shared memory alone",
    r"HGMMA": "HGMMA",
    r"HMMA": "HMMA",
    r"IMMA": "IMMA",
    r"HFMA2": "HFMA2",
    r"LDSM": "LDSM",
    r"FFMA": "FFMA",
    r"ATOMS\.POPC": "counts of all lanes alike at once",
}


@dataclasses.dataclass
class Rule:
    pattern: str  # of names
    has: tuple = ()
    lacks: tuple = ()
    local: int = 0  # instructions on local memory, at most
    why: str = ""


RULES = [
    Rule(
        r"^qmv_sm90<(QmvHelped<Mxfp4|QmvTraits<Nvfp4, 8)",
        has=(BULK, r"HMMA", r"LDSM"),
        local=6,
        why="the same; up to six numbers wait in local memory for a tile's beginning or end",
    ),
    Rule(
        r"^qmv_sm90<",
        has=(BULK, r"HMMA", r"LDSM"),
        why="weights in bulk, products on tensor cores",
    ),
    Rule(
        r"^qmv_one_sm90<",
        has=(BULK, r"IMMA"),
        lacks=(r"HMMA",),
        why="weights in bulk, exact products of bytes on tensor cores",
    ),
    Rule(
        r"^ffn_one_sm90<.*(Affine<4>|Mxfp4)",
        has=(BULK, r"IMMA", r"LDSM"),
        lacks=(r"HMMA",),
        why="weights in bulk, products of integers on tensor cores",
    ),
    Rule(
        r"^ffn_one_sm90<",
        has=(BULK, r"HMMA", r"LDSM"),
        why="weights in bulk, products on tensor cores",
    ),
    Rule(
        r"^qmm_few_sm90<",
        has=(BULK, r"HMMA"),
        lacks=(r"HGMMA",),
        why="weights in bulk, x in registers, products by warps",
    ),
    Rule(
        r"^qmm_sm90_one<",
        has=(BULK, r"HMMA"),
        lacks=(r"HGMMA",),
        why="weights and rows of x in bulk, products by warps that wait for none",
    ),
    Rule(
        r"^qmm_sm90_held<",
        has=(BULK, r"HMMA"),
        lacks=(r"HGMMA",),
        why="weights in bulk, products by warps that hold rows of x",
    ),
    Rule(
        r"^qmm_sm90(_either)?<(EndingIn<)?Dense<",
        has=(BULK, HGMMA_SHARED),
        lacks=(HGMMA_REGISTERS,),
        why="both factors of a product from shared memory",
    ),
    Rule(
        r"^qmm_sm90<(EndingIn<.*, 1>|(?!EndingIn).*), NibbleTiles<Tiles128>>",
        has=(BULK, HGMMA_REGISTERS),
        lacks=(HGMMA_SHARED,),
        local=24,
        why="beside four row groups the warp that gathers rows has 32 registers: numbers of a tile",
    ),
    Rule(
        r"^qmm_sm90<BlockNvfp4<.*, AheadTiles<",
        has=(BULK, HGMMA_REGISTERS),
        lacks=(HGMMA_SHARED,),
        local=42,
        why="as below; the warp that writes rows of x has 40 registers: numbers of a row",
    ),
    Rule(
        r"^qmm_sm90<EndingIn<.*, AheadTiles<",
        has=(BULK, HGMMA_REGISTERS),
        lacks=(HGMMA_SHARED,),
        local=4,
        why="as below; activations spill a number of a tile or two",
    ),
    Rule(
        r"^qmm_sm90<.*, AheadTiles<",
        has=(BULK, HGMMA_REGISTERS),
        lacks=(HGMMA_SHARED,),
        why="weights decoded into registers, 8 fewer of them for a warp that writes rows of x",
    ),
    Rule(
        r"^qmm_sm90_either<Affine<.*, 8>, Tiles128,",
        has=(BULK, HGMMA_REGISTERS),
        lacks=(HGMMA_SHARED,),
        local=31,
        why="as below",
    ),
    Rule(
        r"^qmm_sm90_either<",
        has=(BULK, HGMMA_REGISTERS),
        lacks=(HGMMA_SHARED,),
        local=24,
        why="as qmm_sm90, twice: beside wider tiles some numbers of a tile are spilled",
    ),
    Rule(
        r"^qmm_sm90<Affine<Bfloat16Pairs, 8>, Tiles256>",
        has=(BULK, HGMMA_REGISTERS, r"HFMA2"),
        lacks=(HGMMA_SHARED,),
        local=2,
        why="as below; a number waits in local memory for a tile's beginning",
    ),
    Rule(
        r"^qmm_sm90<AnyAffine<Bfloat16Pairs, 8>, Tiles256Any>",
        has=(BULK, HGMMA_REGISTERS),
        lacks=(HGMMA_SHARED,),
        local=4,
        why="as above, scales of any group: two numbers wait for a tile's beginning or its end",
    ),
    Rule(
        r"^qmm_sm90<NaturalBlockFp4, NibbleTiles<Tiles256>>",
        has=(BULK, HGMMA_REGISTERS),
        lacks=(HGMMA_SHARED,),
        local=4,
        why="as below; a number waits in local memory while a tile begins and while it ends",
    ),
    Rule(
        r"^qmm_sm90<(EndingIn<)?Affine<",
        has=(BULK, HGMMA_REGISTERS, r"HFMA2"),
        lacks=(HGMMA_SHARED,),
        why="weights decoded into registers, scale and bias in one multiply-add of pairs",
    ),
    Rule(
        r"^qmm_sm90<",
        has=(BULK, HGMMA_REGISTERS),
        lacks=(HGMMA_SHARED,),
        why="weights decoded into registers",
    ),
    Rule(r"^(place|stage)_rows<", has=(WIDE,), why="rows of x moved 16 bytes at a time"),
    Rule(
        r"^list_pairs<",
        has=(WIDE, r"ATOMS\.POPC"),
        why="rows of x and ids read 16 bytes at a time, ids counted",
    ),
    Rule(r"^combine_", has=(WIDE,), why="rows read 16 bytes at a time"),
    Rule(
        r"^qqmm_fp8_sm90",
        has=(BULK, QGMMA_REGISTERS),
        why="w decoded into registers, fp8 products",
    ),
    Rule(r"^(fold_rows|stage_unfolded)<FloatRows", has=(WIDE,), why="rows read 16 bytes at a time"),
    Rule(
        r"^segmented_sm80<.*HalfMultiplier",
        has=(WIDE, r"HMMA", r"LDSM"),
        why="operands by 16-byte loads, fragments by matrices",
    ),
    Rule(
        r"^segmented_sm80<.*FmaMultiplier",
        has=(WIDE, r"FFMA"),
        why="IEEE multiply-adds",
    ),
    Rule(r"^segmented_limbs", has=(WIDE,), why="records written 16 bytes at a time"),
    Rule(
        r"^segmented_sm80_limbs",
        has=(r"HMMA", r"LDSM"),
        local=2,
        why="limbs by asynchronous copies, fragments by matrices",
    ),
    Rule(
        r"^segmented_sm90<WgmmaConsumer<",
        has=(BULK, HGMMA_SHARED),
        local=2,
        why="both factors from shared memory; one number kept aside by the largest tile, outside of its loop",
    ),
    Rule(
        r"^segmented_sm90<LimbConsumer",
        has=(BULK, HGMMA_SHARED),
        why="limbs of both factors from shared memory",
    ),
    Rule(
        r"^segmented_sm90<FmaConsumer<",
        has=(BULK, r"FFMA"),
        lacks=(r"HGMMA",),
        why="IEEE multiply-adds",
    ),
    Rule(
        r"^qmm_sm80<",
        has=(WIDE, r"HMMA", r"LDSM"),
        local=80,
        why="weights and x by 16-byte copies; a miss: 128 registers a thread are few, and numbers are spilled",
    ),
    Rule(
        r"^qmm_sm80_limbs<.*QmmSm80LimbsTile<64>",
        has=(r"HMMA", r"LDSM"),
        local=160,
        why="two blocks a multiprocessor; a miss: affine formats keep what begins and ends a tile aside",
    ),
    Rule(
        r"^qmm_sm80_limbs<",
        has=(r"HMMA", r"LDSM"),
        local=2,
        why="limbs by asynchronous copies, fragments by matrices",
    ),
    Rule(
        r"^(quantize|quantize_dual|dequantize|to_fp8|from_fp8)",
        local=32,
        why="the definition's way, for groups that ask for it, keeps numbers aside",
    ),
    Rule(r"_sm[89]0", why="no local memory"),
]


def rule_of(kernel):
    return next((r for r in RULES if re.search(r.pattern, kernel.name)), None)


def broken(kernel):
    """What rules say against a kernel."""
    rule = rule_of(kernel)
    if rule is None:
        return []
    wrong = [f"no {NAMES[p]}" for p in rule.has if not kernel.count(p)]
    wrong += [f"{kernel.count(p)} x {NAMES[p]}" for p in rule.lacks if kernel.count(p)]
    local = kernel.count(LOCAL)
    if local > rule.local:
        wrong.append(f"{local} instructions on local memory, at most {rule.local}")
    # What ptxas warns of (C7510 and its like), by what it does then: every product is waited for.
    products = kernel.count(r"HGMMA")
    alone = kernel.count(r"HGMMA.*gsb0")
    if products > 1 and 2 * alone > products:
        wrong.append(f"{alone} of {products} wgmma instructions stand alone: they were serialised")
    return wrong
