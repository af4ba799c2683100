"""Models of transformers, small, with random weights, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

TOKENS, ROWS, VOCABULARY = 7, 3, 31
PADS = {"none": [0, 0, 0], "left": [0, 2, 4], "right": [0, 2, 4]}


def text(padding: str) -> dict[str, Tensor]:
    """input_ids and attention_mask of rows of 7, 5 and 3 tokens, padded at a side."""
    ids = torch.randint(1, VOCABULARY, (ROWS, TOKENS))
    place, pads = torch.arange(TOKENS), torch.tensor(PADS[padding])[:, None]
    real = place >= pads if padding == "left" else place < TOKENS - pads
    return {"input_ids": ids * real, "attention_mask": real.long()}


def _vit(**given: Any) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    return ViTForImageClassification(ViTConfig(image_size=12, patch_size=4, num_labels=3, **sizes, **given))


def _swin(**given: Any) -> nn.Module:
    from transformers import SwinConfig, SwinForImageClassification

    sizes = {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [2, 1], "num_heads": [2, 4], "window_size": 4}
    return SwinForImageClassification(SwinConfig(num_labels=3, drop_path_rate=0.0, **sizes, **given))


def _resnet(**given: Any) -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    sizes = {"embedding_size": 8, "hidden_sizes": [8, 12], "depths": [1, 2], "layer_type": "basic"}
    return ResNetForImageClassification(ResNetConfig(num_labels=3, **sizes))


def _convnext(**given: Any) -> nn.Module:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    sizes = {"hidden_sizes": [8, 12], "depths": [1, 2], "num_stages": 2, "image_size": 16, "patch_size": 2}
    return ConvNextForImageClassification(ConvNextConfig(num_labels=3, drop_path_rate=0.0, **sizes))


def _bert(**given: Any) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": given.pop("dropout", 0.0)}
    return BertForMaskedLM(BertConfig(vocab_size=VOCABULARY, max_position_embeddings=32, **sizes, **none, **given))


def _gpt2(**given: Any) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": VOCABULARY}
    none = {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": given.pop("dropout", 0.0)}
    return GPT2LMHeadModel(GPT2Config(bos_token_id=1, eos_token_id=2, **sizes, **none, **given))


SIZES = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 24, "vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip


def _llama(**given: Any) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(attention_dropout=given.pop("dropout", 0.0), **SIZES, **given))


def _mistral(**given: Any) -> nn.Module:
    from transformers import MistralConfig, MistralForCausalLM

    return MistralForCausalLM(MistralConfig(**SIZES, **given))


def _t5(**given: Any) -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4, "vocab_size": VOCABULARY}
    return T5ForConditionalGeneration(T5Config(dropout_rate=0.0, decoder_start_token_id=0, **sizes, **given))


MAKERS: dict[str, Callable[..., nn.Module]] = {
    "vit": _vit, "swin": _swin, "resnet": _resnet, "convnext": _convnext, "bert": _bert, "gpt2": _gpt2,
    "llama": _llama, "mistral": _mistral, "t5": _t5,
}  # fmt: skip
IMAGES = ("vit", "swin", "resnet", "convnext")


def made(name: str, implementation: str = "sdpa", **given: Any) -> nn.Module:
    """A model in float64, in eval. Its norms are torch's: transformers' round to float32, whatever the dtype."""
    given |= {} if name in ("resnet", "convnext") else {"attn_implementation": implementation}
    model = MAKERS[name](**given)
    for parent in list(model.modules()):
        for child, module in parent.named_children():
            if type(module).__name__ in ("LlamaRMSNorm", "MistralRMSNorm", "T5LayerNorm"):
                norm = nn.RMSNorm(module.weight.shape[0], eps=module.variance_epsilon)
                norm.weight = module.weight
                setattr(parent, child, norm)
    for parameter in model.parameters():  # so that attention is not almost uniform
        if parameter.ndim > 1:
            parameter.data.mul_(4)
    return model.double().eval()


def inputs(name: str, padding: str = "none") -> dict[str, Tensor]:
    """Keywords of one forward."""
    if name in IMAGES:
        size = 12 if name == "vit" else 16
        return {"pixel_values": torch.randn(ROWS, 3, size, size, dtype=torch.float64)}
    given = text(padding)
    if name == "t5":
        given |= {"decoder_" + key: value[:, :5] for key, value in text(padding).items()}
        given["decoder_attention_mask"][:, 0] = 1
    return given


def without_rounding(monkeypatch: Any) -> None:
    """transformers' eager attention takes its softmax in float32, whatever the dtype; here in that of the scores."""
    softmax = nn.functional.softmax
    monkeypatch.setattr(nn.functional, "softmax", lambda x, dim=None, dtype=None: softmax(x, dim=dim))


def values(model: nn.Module, given: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits, and the gradient of every parameter of a function of them."""
    logits = model(**given).logits
    model.zero_grad()
    (logits * torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype).view_as(logits)).sum().backward()
    return logits.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
