"""The checks of the claims about quantization: each in the world as we know it, and in worlds where it is otherwise."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from support.claim_rules import ToldBench, assert_can_say_more_than_one_thing, assert_follows, assert_stays_open

from labkit import gguf, predict
from labkit.course import claims
from labkit.course.claims.bench import Bench
from labkit.course.claims.terms import BUNDLED
from labkit.course.lab02.bench import QuantBench
from labkit.course.lab02.claims import CHECKS, blocks
from labkit.course.lab02.claims.files import reads_to_the_end, table_start
from labkit.course.lab02.claims.sizes import FOUR_BITS, K_MIXTURES
from labkit.engine import EngineError
from labkit.engine.log import LOG_RESOLUTION_BYTES
from labkit.gguf import TYPES, GGMLType, Header
from labkit.models import shapes
from labkit.models.shapes import QUANTS
from labkit.quant.quality import Quality
from labkit.settings import Settings
from labkit.units import GiB

SEVEN = "llama-2-7b"


def quality(rise: float = 0.06, top1: float = 0.87, kld: float = 0.05, error: float = 0.001) -> Quality:
    """What quantizing cost; by default as it was seen for Q4_K_M."""
    return Quality(36 * (1 + rise), 36, kld, error, 4 * kld, top1, 511, 1.0)


class ToldQuant(QuantBench):
    """Blocks, types and sizes as the world has them."""

    bench: World

    def head(self, model: str) -> bytes:
        return self.bench.told_head() if self.bench.told_head else super().head(model)

    def weights_changed(self, type_name: str) -> tuple[int, ...]:
        changed = self.bench.changed
        return changed(TYPES[type_name]) if changed else super().weights_changed(type_name)

    def rounding_error(self, type_name: str) -> float:
        return self.bench.error

    def types_given(self, model: str, quant: str) -> dict[str, str]:
        return {"a": "Q6_K", "b": "Q4_K" if model == BUNDLED else self.bench.types}

    def repacked_bytes(self, model: str) -> int:
        return self.bench.repacked


class World(ToldBench):
    """Figures as told; by default those of this world, but for what takes time.

    Args:
        same: models that are as another one is here.
        headers: models with a header of their own.
        words: all that llama.cpp's libraries say.
    """

    told: ClassVar = {QuantBench: ToldQuant}

    def __init__(
        self,
        *,
        same: Mapping[str, str] = {},
        headers: Mapping[str, Callable[[], Header]] = {},
        head: Callable[[], bytes] | None = None,
        words: tuple[bytes, ...] = (),
        changed: Callable[[GGMLType], tuple[int, ...]] | None = None,
        rounding_error: float = 0.07,
        types_with_zeros: str = "Q4_K",
        q8_0_cache: int = 6,
        repacked_bytes: int = 3 * GiB,
        maps: bool = True,
        plain: Quality | None = None,
        weighted: Quality | None = None,
        q4_0: Quality | None = None,
    ) -> None:
        super().__init__()
        self.same, self.headers, self.told_head, self._words, self.changed = same, headers, head, words, changed
        self.error, self.types, self._q8_0, self.repacked = rounding_error, types_with_zeros, q8_0_cache, repacked_bytes
        self._maps = maps
        self.qualities = {
            ("Q4_K_M", False): plain or quality(),
            ("Q4_K_M", True): weighted or quality(0.036, 0.9, 0.03),
            ("Q4_0", False): q4_0 or quality(0.16, 0.69, 0.26),
        }

    def header(self, model: str) -> Header:
        return self.headers[model]() if model in self.headers else super().header(self.same.get(model, model))

    def in_libraries(self, word: bytes) -> bool:
        return word in self._words

    def planned_kv_bytes(self, model: str, *settings: Settings) -> list[int]:
        return [{"f16": 11, "q8_0": self._q8_0}[one.type_k] for one in settings]

    def can_map(self, model: str) -> bool:
        return self._maps


@cache
def all_of(type_name: str) -> Header:
    """Llama 2 7B with every matrix of one type."""
    table = [(name, dims, type_name if len(dims) > 1 else "F32") for name, dims in shapes.layout(shapes.get(SEVEN))]
    return gguf.read_header(gguf.write_header(shapes.metadata(SEVEN, "F16"), table))


def mixtures(names: tuple[str, ...], like: str, shape: str = SEVEN) -> dict[str, str]:
    return {f"{shape}:{name}": f"{shape}:{like}" for name in names}


def on_pages() -> Header:
    """The bundled model with every tensor on a page."""
    tensors = [(t.name, t.dims, t.type) for t in Bench().header(BUNDLED).tensors]
    return gguf.read_header(gguf.write_header({"general.architecture": "llama"}, tensors, alignment=4096))


def with_keys(*keys: str) -> World:
    header = Bench().header(BUNDLED)
    return World(headers={BUNDLED: lambda: replace(header, metadata={**header.metadata, **dict.fromkeys(keys, 1)})})


def table(*, extra: int = 0, squeeze: bool = False) -> bytes:
    """The first bytes of a file whose table has so many bytes more per tensor, or is compressed."""
    head = gguf.write_header({"general.architecture": "llama", "x": [1, 2], "y": ["a", "b"]}, [])
    head = head[:8] + struct.pack("<Q", 40) + head[16:].rstrip(b"\0")
    rows = b""
    for i in range(40):
        name = f"blk.{i}.attn_q.weight".encode()
        rows += struct.pack("<Q", len(name)) + name + struct.pack("<IqqIQ", 2, 64, 64, 0, 16384 * i)
        rows += struct.pack("<Q", 16384)[:extra]
    out = head + (zlib.compress(rows, 9) if squeeze else rows)
    return out + bytes(-len(out) % 32)


def shared_by(n: int) -> Callable[[GGMLType], tuple[int, ...]]:
    """Blocks that begin with a 2-byte field for so many weights; nothing else is shared."""
    return lambda block: (n, n) + (1,) * (block.block_bytes - 2)


@dataclass(frozen=True)
class Case:
    """A world, and the verdict that follows there; the first case of a claim is the world as we know it."""

    id: str
    verdict: str
    bench: Callable[[], World] = World
    types: dict[str, GGMLType] = field(default_factory=dict)


def block(name: str, block_bytes: int) -> dict[str, GGMLType]:
    return {name: replace(TYPES[name], block_bytes=block_bytes)}


ROUND_BLOCKS = {name: value for i in range(2, 7) for name, value in block(f"Q{i}_K", 32 * 2 ** (i // 3)).items()}
ALL = dict.fromkeys(mixtures(QUANTS, ""), lambda: all_of("Q4_K"))

CASES = [
    Case("C017", "wrong"),
    Case("C017", "misleading", lambda: World(words=(b"k-blob",))),
    Case("C017", "misleading", lambda: World(headers={BUNDLED: on_pages})),
    Case("C017", "confirmed", lambda: World(headers={BUNDLED: on_pages}, words=(b"kblob",)), ROUND_BLOCKS),
    Case("C018", "wrong"),
    Case("C018", "wrong", lambda: World(head=table)),
    Case("C018", "misleading", lambda: World(head=lambda: table(extra=8))),
    Case("C018", "confirmed", lambda: World(head=lambda: table(squeeze=True))),
    Case("C019", "roughly right"),
    Case("C019", "confirmed", lambda: World(changed=shared_by(64))),
    Case("C019", "wrong", lambda: World(changed=shared_by(256))),
    Case("C020", "confirmed"),
    Case("C020", "wrong", lambda: World(changed=shared_by(1))),
    Case("C020", "roughly right", lambda: World(changed=lambda block: (16,) * block.block_bytes)),
    Case("C021", "wrong"),
    Case("C021", "confirmed", lambda: World(same=mixtures(("Q4_K_M",), "IQ4_XS"))),
    Case("C021", "roughly right", lambda: World(same=mixtures(("Q4_K_M",), "Q3_K_L"))),
    Case("C022", "wrong"),
    Case("C022", "wrong", lambda: World(same=mixtures(("Q5_K_S",), "Q2_K"))),
    Case("C022", "roughly right", lambda: World(same=mixtures(("Q5_K_S",), "Q4_1"))),
    Case("C023", "roughly right"),
    Case("C023", "confirmed", lambda: World(same=mixtures(K_MIXTURES, "Q5_K_M"))),
    Case("C023", "wrong", lambda: World(same=mixtures(K_MIXTURES, "Q8_0"))),
    Case("C024", "wrong"),
    Case("C024", "confirmed", lambda: World(headers=dict.fromkeys(mixtures(K_MIXTURES, ""), lambda: all_of("IQ1_S")))),
    Case("C024", "roughly right", lambda: World(headers={f"{SEVEN}:Q2_K": lambda: all_of("IQ1_S")})),
    Case("C025", "roughly right"),
    Case("C025", "confirmed", lambda: World(same=mixtures(("Q4_K_M",), "Q4_K_S"))),
    Case("C025", "wrong", lambda: World(same=mixtures(("Q4_K_M",), "Q8_0"))),
    Case("C026", "roughly right"),
    Case("C026", "wrong", lambda: World(same=mixtures(("Q4_K_M",), "Q8_0"))),
    Case("C027", "roughly right"),
    Case("C027", "confirmed", lambda: World(same=mixtures(("Q4_K_M",), "Q4_K_S", "llama-2-13b")
        | mixtures(("Q5_K_M",), "Q5_K_S", "llama-2-13b"))),
    Case("C027", "wrong", lambda: World(same=mixtures(("Q5_K_M",), "Q8_0", "llama-2-13b"))),
    Case("C028", "roughly right"),
    Case("C028", "confirmed", lambda: World(types_with_zeros="Q6_K")),
    Case("C028", "wrong", lambda: World(same=mixtures(("Q4_K_M",), "Q8_0"))),
    Case("C029", "misleading"),
    Case("C029", "confirmed", lambda: World(plain=quality(top1=0.6))),
    Case("C029", "wrong", lambda: World(weighted=quality(kld=0.048))),
    Case("C029", "wrong", lambda: World(weighted=quality(kld=0.03, error=0.02))),
    Case("C030", "roughly right"),
    Case("C030", "confirmed", lambda: World(plain=quality(0.003, 0.96))),
    Case("C030", "roughly right", lambda: World(plain=quality(0.003, 0.9))),
    Case("C030", "wrong", lambda: World(plain=quality(0.3))),
    Case("C030", "wrong", lambda: World(plain=quality(0.06, 0.6))),
    Case("C031", "misleading"),
    Case("C031", "confirmed", lambda: World(rounding_error=0.04)),
    Case("C031", "wrong", World, block("Q4_K", 512)),
    Case("C032", "misleading"),
    Case("C032", "confirmed", lambda: World(words=(b"migrat",), repacked_bytes=0)),
    Case("C032", "roughly right", lambda: World(words=(b"migrat",))),
    Case("C032", "wrong", lambda: with_keys("general.cuda_layout")),
    Case("C033", "misleading"),
    Case("C033", "confirmed", lambda: with_keys("llama.page_size", "llama.kv_cache.type")),
    Case("C033", "roughly right", lambda: with_keys("llama.page_size")),
    Case("C033", "wrong", lambda: World(maps=False)),
    Case("C033", "wrong", lambda: World(q8_0_cache=11)),
    Case("C076", "wrong"),
    Case("C076", "misleading", lambda: World(same=mixtures(("F16",), "Q8_0") | mixtures(("Q8_0",), "Q4_1"))),
    Case("C076", "confirmed", lambda: World(same=mixtures(("F16",), "Q8_0") | mixtures(("Q8_0",), "Q5_0"))),
    Case("C077", "wrong"),
    Case("C077", "confirmed", lambda: World(same=mixtures(FOUR_BITS, "Q3_K_M"))),
    Case("C077", "roughly right", lambda: World(same=mixtures(("Q4_0",), "Q3_K_M"))),
    Case("C104", "depends on machine"),
    Case("C104", "confirmed", lambda: World(plain=quality(0.02, 0.975), q4_0=quality(0.03, 0.98))),
    Case("C104", "wrong", lambda: World(plain=quality(0.1, 0.9), q4_0=quality(0.12, 0.85))),
    Case("C127", "misleading"),
    Case("C127", "confirmed", lambda: World(headers={**ALL, f"{SEVEN}:Q8_0": lambda: all_of("Q8_K")})),
    Case("C127", "wrong", lambda: World(headers=dict.fromkeys(ALL, lambda: all_of("Q2_K")))),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _own_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.id}-{case.verdict}".replace(" ", "-"))
def test_the_verdict_follows_from_the_figures(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "TYPES", {**TYPES, **case.types})
    assert_follows(CHECKS[case.id](case.bench()), case.verdict)


def test_each_claim_of_lab_02_has_a_check_that_can_say_more_than_one_thing() -> None:
    assert_can_say_more_than_one_thing("02", CHECKS, CASES)


@pytest.mark.parametrize(
    ("name", "world", "reason"),
    [
        ("C018", lambda: World(head=lambda: table(extra=3)), "other fields"),
        ("C019", lambda: World(changed=shared_by(1)), "no byte of a"),
    ],
)
def test_figures_that_decide_nothing_leave_a_claim_open(name: str, world: Callable[[], World], reason: str) -> None:
    (row,) = claims.settle(name, bench=world())
    assert_stays_open(row, reason)


def test_the_plain_reading_of_the_table_ends_where_the_data_begins() -> None:
    """With another parser: 272 entries, and the same number of bytes from the first to the data's padding."""
    bench = Bench()
    head = bench.part(QuantBench).head(BUNDLED)
    assert head[:4] == b"GGUF" and len(head) == bench.header(BUNDLED).data_offset
    start, n = table_start(head)
    assert n == len(bench.header(BUNDLED).tensors) == 272
    names = [t.name for t in bench.header(BUNDLED).tensors]
    ends = start + sum(8 + len(t.name) + 4 + 8 * len(t.dims) + 4 + 8 for t in bench.header(BUNDLED).tensors)
    assert 0 <= len(head) - ends < 32 and head[start + 8 :].startswith(names[0].encode())
    assert reads_to_the_end(head, start, n, 0)
    for extra in (1, 4, 8):
        assert not reads_to_the_end(head, start, n, extra)


@pytest.mark.parametrize(
    ("type_name", "fields"),
    [
        ("Q8_0", [(2, 32), (32, 1)]),
        ("Q4_0", [(2, 32), (16, 1)]),
        ("Q4_K", [(4, 256), (12, 32), (128, 1)]),
        ("Q5_K", [(4, 256), (12, 32), (160, 1)]),
        ("Q6_K", [(192, 1), (16, 16), (2, 256)]),
        ("Q2_K", [(16, 16), (64, 1), (4, 256)]),
    ],
)
def test_flipping_bits_shows_the_fields_of_a_block(type_name: str, fields: list[tuple[int, int]]) -> None:
    """Bytes and weights each of them reaches, in the order of the block_* structs in ggml/src/ggml-common.h."""
    assert Bench().part(QuantBench).weights_changed(type_name) == tuple(
        n for n_bytes, n in fields for _ in range(n_bytes)
    )


def test_rounding_halves_the_error_about_once_a_bit() -> None:
    q4, q5, q6 = (Bench().part(QuantBench).rounding_error(name) for name in ("Q4_K", "Q5_K", "Q6_K"))
    assert 2**-4.5 < q4 < 0.1
    assert 1.7 < q4 / q5 < 2.3 and 1.7 < q5 / q6 < 2.3


@pytest.mark.live
def test_the_dry_run_gives_the_cache_of_the_formula() -> None:
    bench = Bench()
    settings = [Settings(type_k=name, type_v=name) for name in ("f16", "q8_0")]
    for one, planned in zip(settings, bench.planned_kv_bytes(BUNDLED, *settings), strict=True):
        assert abs(planned - predict.kv_bytes(bench.header(BUNDLED), one)) <= 2 * LOG_RESOLUTION_BYTES


def test_words_are_looked_up_in_any_case() -> None:
    assert Bench().in_libraries(b"llama_model_quantize") and Bench().in_libraries(b"gguf_init_from_file")
    assert not Bench().in_libraries(b"knowledge blob")


def test_a_mixture_is_made_and_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def quantize(model: str | Path, quant: str, *, imatrix: Any = None, progress: Any) -> SimpleNamespace:
        made.append((str(model), quant, imatrix))
        return SimpleNamespace(path=Path(f"{quant}.gguf"))

    def compare(model: Path, reference: Path, *, progress: Any) -> Quality:
        made.append((str(model), str(reference)))
        return quality()

    # Package attributes of these names may be the functions, so the modules are asked for by name.
    monkeypatch.setattr(import_module("labkit.quant.quantize"), "quantize", quantize)
    monkeypatch.setattr(import_module("labkit.quant.quality"), "quality", compare)
    monkeypatch.setattr(
        import_module("labkit.quant.imatrix"), "collect", lambda model, *, progress: f"matrix of {model}"
    )
    bench = Bench()
    quant = bench.part(QuantBench)
    assert quant.quality("Q4_K_M") is quant.quality("Q4_K_M")
    assert made == [(BUNDLED, "F16", None), ("F16.gguf", "Q4_K_M", None), ("Q4_K_M.gguf", "F16.gguf")]
    quant.quality("Q4_K_M", imatrix=True)
    assert made[4] == ("F16.gguf", "Q4_K_M", "matrix of F16.gguf")
    assert bench.looked


def test_without_llama_cpp_what_it_would_tell_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*given: Any, **how: Any) -> None:
        raise EngineError("llama-cpp-python is not installed.")

    for name in ("engine.quantize", "engine.ggml.decode", "engine.ggml.encode"):
        monkeypatch.setattr(f"labkit.{name}", missing)
    problem = "llama-cpp-python is not installed."
    monkeypatch.setattr("labkit.experiments.child.task.version_problem", lambda: problem)
    monkeypatch.setattr("labkit.experiments.dry_run._remembered", {})
    rows = claims.settle("C019", "C020", "C028", "C031", "C033")
    assert {row.verdict for row in rows} == {"open"}
    assert {row.source for row in rows} == {"not settled here: llama-cpp-python is not installed"}


def test_what_cannot_be_quantized_leaves_a_claim_open(monkeypatch: pytest.MonkeyPatch) -> None:
    from labkit.experiments.child.task import TaskError

    def refuse(*given: Any, **how: Any) -> None:
        raise TaskError("llama.cpp is not in the mood.")

    monkeypatch.setattr(import_module("labkit.quant.quantize"), "quantize", refuse)
    (row,) = claims.settle("C030", bench=Bench())
    assert row.verdict == "open" and row.source == "not settled here: llama.cpp is not in the mood"


@pytest.mark.live
def test_live_on_the_bundled_model() -> None:
    """All but the three whose quality takes a minute to measure; lab 02 settles those."""
    names = [name for name in CHECKS if name not in ("C029", "C030", "C104")]
    for row in claims.settle(*names):
        assert row.verdict == claims.get(row.id).expected, row.evidence
        assert row.source in ("measured here", "computed") and row.figures


@pytest.mark.live
def test_types_follow_from_names_and_sizes_alone() -> None:
    """llama.cpp saw the trained weights; the kit's rule did not."""
    found = Bench().part(QuantBench).types_given(BUNDLED, "Q4_K_M")
    assert found == {tensor.name: tensor.type for tensor in shapes.tensors("smollm2-135m", "Q4_K_M")}
