"""What the scopes in an op's name tell: its layer, and the forward op whose gradient it computes."""

from __future__ import annotations

import re

_GRADIENTS = re.compile(r"(gradients|gradient_tape)(_\d+)?$")
_NUMBERED = re.compile(r"\d+$")
_TECHNICAL = re.compile(r"(batchnorm|km_disable_scope(_\d+)?)$")  # made by tf.nn and Keras
_UNNUMBERED_SCOPES = 2  # scopes that name a layer without a number, such as "model/embedding"


def layer_of(op: str) -> str:
    """Return the layer of an op: its scopes up to the first numbered one. A number in the op's own name is ignored.

    >>> layer_of("gradients/model/layer_3/dense/MatMul_grad/MatMul_1")
    'model/layer_3'
    >>> layer_of("model/embedding/lookup/Gather")
    'model/embedding'
    >>> layer_of("AddN_2")
    ''
    """
    scopes = [scope for scope in op.split("/")[:-1] if not _GRADIENTS.match(scope)]
    for number, scope in enumerate(scopes):
        if _NUMBERED.search(scope):
            return "/".join(scopes[: number + 1])
    return "/".join(scopes[:_UNNUMBERED_SCOPES])


def is_gradient(op: str) -> bool:
    """Return whether an op's name lies in a scope of gradients.

    >>> is_gradient("gradients/model/dense/MatMul_grad/MatMul_1"), is_gradient("model/dense/MatMul")
    (True, False)
    """
    return any(_GRADIENTS.match(scope) for scope in op.split("/")[:-1])


def forward_op(op: str) -> str:
    """Return the name of the forward op whose gradient an op computes; "" if its name does not tell.

    >>> forward_op("gradients/model/dense/MatMul_grad/MatMul_1")
    'model/dense/MatMul'
    >>> forward_op("gradients/while_grad/while_grad")
    'while'
    >>> forward_op("gradients/AddN_3")
    ''
    """
    scopes = op.split("/")
    first = next((number for number, scope in enumerate(scopes) if _GRADIENTS.match(scope)), None)
    if first is None:
        return ""
    for number in range(len(scopes) - 2, first, -1):
        if scopes[number].endswith("_grad"):
            return "/".join([*scopes[first + 1 : number], scopes[number].removesuffix("_grad")])
    return ""


def clean_scope(op: str) -> str:
    """Return the scopes of an op without those that repeat the one before.

    >>> clean_scope("mlp/dense/dense/MatMul"), clean_scope("norm/batchnorm/Rsqrt"), clean_scope("MatMul")
    ('mlp/dense', 'norm', '')
    """
    scopes: list[str] = []
    for scope in op.split("/")[:-1]:
        if not _TECHNICAL.match(scope) and (not scopes or scopes[-1] != scope):
            scopes.append(scope)
    return "/".join(scopes)
