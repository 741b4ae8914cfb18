"""What llama.cpp stores for each layer of each architecture: tables that follow its sources.

Sources: ``create_memory`` in src/llama-model.cpp picks the cache; ``load_arch_hparams`` in src/models/ says which
layers have a window (``load_swa_pattern``, ``is_swa_impl``) and which are recurrent (``is_recr_impl``);
llm_arch_is_recurrent and llm_arch_is_hybrid in src/llama-arch.cpp (llama.cpp 0c1e57098).

``tests/predict/test_kv.py`` compares the caches of all architectures with what llama.cpp allocates.
"""

from __future__ import annotations

from dataclasses import dataclass

# Every layer attends to all earlier tokens and stores K and V for them. (llama.cpp reads the window of phi3 and does
# not apply it; t5 has as many layers of cache as its encoder has blocks.)
_FULL_NAMES = """
apertus arcee arctic baichuan bailingmoe bailingmoe2 bitnet bloom chameleon chatglm codeshell cogvlm command-r dbrx
deci deepseek deepseek2-ocr dots1 ernie4_5 ernie4_5-moe exaone falcon gemma glm4 glm4moe gpt2 gptneox granite
granitemoe grok grovemoe hrm_text hunyuan-dense hunyuan-moe hunyuan_vl hy_v3 internlm2 jais jais2 llama llama-embed
maincoder minicpm minicpm3 minimax-m2 mistral3 mpt nemotron olmo olmoe openelm orion paddleocr pangu-embedded phi2
phi3 phimoe plamo plm pockettts qwen qwen2 qwen2moe qwen2vl qwen3 qwen3moe qwen3tts qwen3vl qwen3vlmoe refact seed_oss
smollm3 stablelm starcoder starcoder2 t5 t5encoder talkie xverse
"""
FULL = frozenset(_FULL_NAMES.split())

# One compressed vector per token instead of K and V (hparams.is_mla), if the file has the widths of the heads that are
# unpacked from it; older files do not, and then K and V are stored unpacked.
LATENT = frozenset(("deepseek2", "mistral4", "kimi-linear", "kimi-k3", "bailingmoe3"))

# These read a whole text in one batch, so they have no cache.
_NO_CACHE_NAMES = """
bert dream eurobert gemma-embedding jina-bert-v2 jina-bert-v3 llada llada-moe modern-bert neo-bert nomic-bert
nomic-bert-moe rnd1 wavtokenizer-dec
"""
NO_CACHE = frozenset(_NO_CACHE_NAMES.split())


@dataclass(frozen=True)
class Window:
    """How layers with a sliding window alternate with layers that see all tokens (llama_hparams::set_swa_pattern).

    Attributes:
        every: one layer in so many sees all tokens; 0: none does; None: the file lists them. A pattern in the file
            overrides it.
        dense_first: that layer is the first of its group, not the last.
        default: tokens of the window if the file has no such key.
        fixed: tokens of the window, whatever the file has; but there is no window if the file has 0 (or no such key and
            there is no default).
        n_layer: only models with so many layers have the window.
    """

    every: int | None
    dense_first: bool = False
    default: int = 0
    fixed: int = 0
    n_layer: int | None = None


WINDOWS = {
    "afmoe": Window(4),
    "cohere2": Window(4),
    "cohere2moe": Window(4, dense_first=True),
    "exaone-moe": Window(4),
    "exaone4": Window(4, default=4096, n_layer=64),
    "gemma2": Window(2, default=4096),
    "gemma3": Window(6),
    "gemma3n": Window(5),
    "gemma4": Window(None),
    "gpt-oss": Window(2),
    "granite_swa": Window(None),
    "laguna": Window(4, dense_first=True),
    "lfm2": Window(0),
    "llama4": Window(4, default=8192, fixed=8192),  # chunks of that many tokens instead of a sliding window
    "maple": Window(None),
    "mellum": Window(4),
    "mimo2": Window(None),
    "muse-glimmer": Window(4),
    "olmo2": Window(4),
    "plamo3": Window(8),
    "smallthinker": Window(4, dense_first=True, fixed=4096),
    "spark2_5": Window(None),
    "step35": Window(None),
}


@dataclass(frozen=True)
class Recurrence:
    """Which layers have a state of fixed size instead of K and V, and what it consists of.

    Attributes:
        state: "ssm", "wkv", "shortconv", "kda" or "linear": see ``layers.state_width``.
        layers: which are recurrent: "all"; "beside", all, with attention as well; "kv_heads", those without KV heads in
            the file; "no_ffn", those with neither KV heads nor a feed-forward; "interval", all but one in ``interval``,
            unless the file lists them.
        interval: the default if the file has no such key.
    """

    state: str
    layers: str
    interval: int = 0


RECURRENT = {
    "mamba": Recurrence("ssm", "all"),
    "mamba2": Recurrence("ssm", "all"),
    "rwkv6": Recurrence("wkv", "all"),
    "rwkv6qwen2": Recurrence("wkv", "all"),
    "rwkv7": Recurrence("wkv", "all"),
    "arwkv7": Recurrence("wkv", "all"),
    "falcon-h1": Recurrence("ssm", "beside"),
    "jamba": Recurrence("ssm", "kv_heads"),
    "granitehybrid": Recurrence("ssm", "kv_heads"),
    "plamo2": Recurrence("ssm", "kv_heads"),
    "lfm2": Recurrence("shortconv", "kv_heads"),
    "lfm2moe": Recurrence("shortconv", "kv_heads"),
    "kimi-linear": Recurrence("kda", "kv_heads"),
    "kimi-k3": Recurrence("kda", "kv_heads"),
    "bailingmoe3": Recurrence("kda", "kv_heads"),
    "nemotron_h": Recurrence("ssm", "no_ffn"),
    "nemotron_h_moe": Recurrence("ssm", "no_ffn"),
    "qwen3next": Recurrence("ssm", "interval", 4),
    "qwen35": Recurrence("ssm", "interval", 4),
    "qwen35moe": Recurrence("ssm", "interval", 4),
    "minimax-01": Recurrence("linear", "interval", 8),
}

_INDEX = "its sparse attention keeps an index beside the cache"
_DRAFT = "it drafts tokens for another model, whose cache it uses"
NOT_EXACT = {
    **dict.fromkeys(("deepseek32", "deepseek4", "dots3note", "glm-dsa", "glm5-next", "hy_v4"), _INDEX),
    **dict.fromkeys(("minimax-m3", "qwen4exp"), _INDEX),
    **dict.fromkeys(("dflash", "eagle3", "gemma4-assistant"), _DRAFT),
    "graniteswitch": "its router is one more layer of cache",
    "nanbeige": "it may run its layers several times, each time with a cache of its own",
}

KNOWN = FULL | LATENT | NO_CACHE | WINDOWS.keys() | RECURRENT.keys()
