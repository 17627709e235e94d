"""The model summary: layers, shapes, parameters, operations, and where each weight lives."""

from __future__ import annotations

from cerebras_tensorflow.system.wafer.layers import Layer, Network

SPARSITY_TITLES = ("sparse weight", "share of zeros, at the last change of its mask")
TITLES = ("layer", "kind", "output", "parameters", "operations a sample", "its weights live")


def summary_rows(network: Network, mode: str) -> list[tuple[str, ...]]:
    """Return one row for each layer, as TITLES.

    Args:
        network: The layers.
        mode: "pipelined" or "weight_streaming".
    """
    return [
        (
            layer.name,
            layer.kind,
            layer.shape or "-",
            f"{layer.num_own_weights:,}",
            f"{layer.flops:.3g}",
            weights_live(layer, mode),
        )
        for layer in network.layers
    ]


def summary_text(network: Network, mode: str) -> str:
    """Return the summary as a table, with the totals below."""
    from tabulate import tabulate  # here, because it is slow and few runs ask for a summary

    total = f"{len(network.layers)} layers, {network.num_weights:,} parameters, {network.flops:.3g} operations a sample"
    text = f"Model summary\n\n{tabulate(summary_rows(network, mode), TITLES, disable_numparse=True)}\n\n{total}\n"
    if network.sparsity:
        text += f"\n{tabulate(sparsity_rows(network), SPARSITY_TITLES, disable_numparse=True)}\n"
    return text


def sparsity_rows(network: Network) -> list[tuple[str, str]]:
    """Return one row for each sparse weight, as SPARSITY_TITLES."""
    return [(name, f"{share:.1%}") for name, share in network.sparsity.items()]


def weights_live(layer: Layer, mode: str) -> str:
    """Return where a layer's weights are between two steps of the simulated system."""
    if not layer.num_weights:
        return "-"
    if not layer.num_own_weights:
        return "with an earlier layer that shares them"
    return "on the wafer" if mode == "pipelined" else "in the weight store, streamed"
