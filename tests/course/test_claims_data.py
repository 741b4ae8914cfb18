"""The ledger's data: complete, consistent, in the units it promises, and naming only options that exist."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT

LEDGER: dict[str, Any] = json.loads((ROOT / "datasets/claims.json").read_text("utf-8"))
CLAIMS: list[dict[str, Any]] = LEDGER["claims"]
EXPECTED = {"confirmed", "roughly right", "misleading", "wrong", "depends on machine"}
FIELDS = {
    "id", "topic", "source", "claim", "finding", "expected", "settled_by", "lab", "option", "conflicts_with",
}  # fmt: skip


def test_130_claims_in_order_without_gaps() -> None:
    assert [claim["id"] for claim in CLAIMS] == [f"C{number:03d}" for number in range(1, 131)]
    assert len({claim["claim"] for claim in CLAIMS}) == 130


def test_every_claim_has_the_same_fields_from_the_same_vocabulary() -> None:
    for claim in CLAIMS:
        assert set(claim) == FIELDS, claim["id"]
        assert claim["expected"] in EXPECTED, claim["id"]
        assert claim["settled_by"] in LEDGER["settled_by"], claim["id"]
        assert claim["lab"] in {f"{number:02d}" for number in range(8)}, claim["id"]
        assert claim["source"] and set(claim["source"]) <= set(LEDGER["sources"]), claim["id"]
        assert isinstance(claim["option"], str), claim["id"]


def test_each_lab_settles_the_claims_about_its_subject() -> None:
    by_lab: dict[str, set[int]] = {}
    for claim in CLAIMS:
        by_lab.setdefault(claim["lab"], set()).add(int(claim["id"][1:]))
    assert by_lab["01"] == set(range(1, 17))
    assert by_lab["02"] == {*range(17, 34), 76, 77, 104, 127}
    assert by_lab["03"] == set(range(34, 70))
    assert by_lab["04"] == {*range(70, 76), *range(78, 92), 129}
    assert by_lab["05"] == {120, 121, 122}


def test_conflicts_are_mutual() -> None:
    conflicts = {claim["id"]: set(claim["conflicts_with"]) for claim in CLAIMS}
    for one, others in conflicts.items():
        assert one not in others
        for other in others:
            assert one in conflicts[other], f"{one} contradicts {other}, but not the other way round"


def test_sentences_are_short_and_finished() -> None:
    for claim in CLAIMS:
        for field, longest in (("claim", 180), ("finding", 420)):
            text = claim[field]
            assert text == text.strip() and text.endswith("."), (claim["id"], field)
            assert len(text) <= longest, (claim["id"], field, len(text))


def test_findings_count_in_powers_of_1024() -> None:
    for claim in CLAIMS:
        assert not re.search(r"\d ?(?:[kMGT]B)\b", claim["finding"]), claim["id"]


def test_a_finding_says_measured_only_where_a_lab_measures() -> None:
    for claim in CLAIMS:
        if claim["settled_by"] != "measure":
            assert not re.search(r"\b(?:measured|we saw|seen to)\b", claim["finding"]), claim["id"]
        if claim["settled_by"] == "none":
            assert "check" in claim["finding"], f"{claim['id']} does not say that it cannot be checked"


def test_options_exist_in_the_installed_llama_cpp() -> None:
    spec = importlib.util.find_spec("llama_cpp")
    assert spec is not None and spec.origin is not None
    site = Path(spec.origin).parent.parent
    libraries = [path for folder in ("lib", "llama_cpp/lib") for path in (site / folder).glob("libllama-common.so")]
    if not libraries:
        pytest.skip("this build of llama-cpp-python comes without libllama-common.so, which lists the options")
    strings = libraries[0].read_bytes()
    for claim in CLAIMS:
        for option in re.findall(r"(?<![\w-])(--[a-z][a-z-]*[a-z]|LLAMA_[A-Z_]+)", claim["option"]):
            if option == "--imatrix":  # llama-quantize has it, which the Python package does not include
                continue
            assert option.encode() + b"\0" in strings, (claim["id"], option)


def test_options_that_do_not_exist_are_called_wrong() -> None:
    invented = {
        "C061": "--kv-cache-quantize",
        "C062": "LLAMA_KV_QUANTIZE",
        "C063": "--offload-kv",
        "C064": "--max-context",
        "C073": "--cpu-offload",
        "C074": "LLAMA_CPU_OFFLOAD_LAYERS",
    }
    claims = {claim["id"]: claim for claim in CLAIMS}
    for identifier, option in invented.items():
        assert option in claims[identifier]["claim"] and option not in claims[identifier]["option"]
        assert claims[identifier]["expected"] == "wrong"
