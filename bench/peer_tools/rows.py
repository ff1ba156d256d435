# SPDX-License-Identifier: Apache-2.0
"""What is compared, and how one row is measured."""
import dataclasses
import json
import statistics

from peer_tools.install import VARIANTS, Failed
from peer_tools.timers import Peer


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    verb: str  # prefill, decode or gemm
    tokens: int  # of the prompt, steps of the decode, rows of the product
    context: int = 0
    sequences: int = 1
    kv: str = "f16"  # the peer's cache
    isa: str = ""  # forced on both sides
    outputs: int = 0
    inputs: int = 0

    @property
    def unit(self):
        return "TOPS" if self.verb == "gemm" else "tok/s"


ROWS = (
    Row("prefill-512", "prefill", 512),
    Row("prefill-2048-f16", "prefill", 2048),
    Row("prefill-2048-q4_0", "prefill", 2048, kv="q4_0"),
    Row("decode-1", "decode", 32, context=1),
    Row("decode-16", "decode", 32, context=64, sequences=16),
    Row("decode-4096-f16", "decode", 32, context=4096),
    Row("prefill-512-avx512", "prefill", 512, isa="avx512"),
    Row("prefill-512-avx_vnni", "prefill", 512, isa="avx_vnni"),
    Row("decode-1-avx_vnni", "decode", 32, context=1, isa="avx_vnni"),
    Row("prefill-512-avx2", "prefill", 512, isa="avx2"),
    Row("decode-1-avx2", "decode", 32, context=1, isa="avx2"),
    Row("gemm-4096x4096", "gemm", 512, outputs=4096, inputs=4096),
    Row("gemm-11008x4096", "gemm", 512, outputs=11008, inputs=4096),
    Row("gemm-4096x11008", "gemm", 512, outputs=4096, inputs=11008),
)


def peer_folder(row, env, missing):
    """Where the peer of the row lies: oneDNN, the forced variant, or the best that is there."""
    if row.verb == "gemm":
        names = ["onednn"]
    else:
        names = [row.isa] if row.isa else [v for v in VARIANTS if not is_absent(v, missing)]
    if not names:
        raise Failed("no llama.cpp build runs on this machine")
    if names[0] in missing:
        raise Failed(missing[names[0]])
    return env / "run" / names[0]


def is_absent(variant, missing):
    """Only an instruction set that the machine lacks leads to the next variant; a build that failed
    stays a reason, or the comparison would quietly become one with a slower peer."""
    return missing.get(variant, "").startswith("this machine has no")


def peer_command(row, folder, model, threads):
    if row.verb == "gemm":
        return [folder / "onednn_gemm", row.tokens, row.outputs, row.inputs]
    return [folder / "llama_timer", model, row.verb, threads, row.kv, row.tokens, row.context,
            row.sequences]


def rate(row, microseconds):
    if row.verb == "gemm":
        return 2 * row.tokens * row.outputs * row.inputs / microseconds / 1e6
    return row.tokens * row.sequences / microseconds * 1e6


def summary(values):
    if not values:
        return None
    return {"median": statistics.median(values), "min": min(values), "max": max(values),
            "n": len(values)}


def take_turns(row, peer, nibble, repeats, result):
    """Peer, Nibble, peer, Nibble: what else the machine does then hits both sides alike."""
    ours, theirs = [], []
    for _ in range(repeats):
        if peer:
            theirs.append(rate(row, peer.microseconds()))
        if "nibble_reason" in result:
            continue
        try:
            ours.append(nibble.tops(row) if row.verb == "gemm" else nibble.tokens_per_second(row))
        except Failed as error:
            result["nibble_reason"] = str(error)
    result["peer"], result["nibble"] = summary(theirs), summary(ours)
    if ours and len(ours) == len(theirs):
        result["ratio"] = result["nibble"]["median"] / result["peer"]["median"]
        result["turns"] = summary([a / b for a, b in zip(ours, theirs)])


def measure(row, env, missing, model, nibble, threads, repeats):
    """One row as a dictionary: figures, or the reason why a side has none."""
    result = {"row": row.name, "unit": row.unit, "peer_kv": row.kv, "isa": row.isa or "best"}
    try:
        folder = peer_folder(row, env, missing)
        result["peer_name"] = "oneDNN" if row.verb == "gemm" else f"llama.cpp {folder.name}"
        if row.verb != "gemm" and "gguf" in missing:
            raise Failed(missing["gguf"])
        result["peer_build"] = json.loads((folder / "info.json").read_text())
        with Peer(peer_command(row, folder, model, threads), threads) as peer:
            result["peer_library"] = peer.info
            if folder.name == "amx" and "AMX" not in peer.info.get("buffers", ""):
                raise Failed("the amx build holds no weights in AMX buffers")
            take_turns(row, peer, nibble, repeats, result)
    except (Failed, OSError) as error:
        result["peer_reason"] = str(error)
        result.pop("ratio", None)
        take_turns(row, None, nibble, repeats, result)
    return result
