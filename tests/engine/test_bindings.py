"""The log of llama.cpp, as the bindings collect it."""

from __future__ import annotations

from labkit.engine import bindings


def test_log_fragments_are_joined_into_lines() -> None:
    log = bindings.LogCapture()
    for fragment in ("load: CPU model ", "buffer size = 1.00 MiB", "\nnext\nhalf", " a line\n..."):
        log.add(fragment)
    assert log.take() == ("load: CPU model buffer size = 1.00 MiB", "next", "half a line")
    assert log.why() == "it gave no reason"
    log.add("\nllama_model_load: it has failed", error=True)
    log.add(", as it must\n", error=True)
    assert log.why() == "it has failed, as it must"
    assert log.take() == ("...", "llama_model_load: it has failed, as it must")
    assert log.why() == "it gave no reason"
