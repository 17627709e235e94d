"""The methods of sparse training: static, GMP, SET, RigL, and the base classes for your own.

Formulas are those of cerebras_pytorch 2.6 (cerebras.pytorch.sparse); SET: Mocanu et al. (2018); RigL: Evci et al.
(2020), Algorithm 1; GMP: Zhu and Gupta (2017).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.sparsity.initialization import BALANCED_METHODS, INIT_METHODS, RANDOM_GROWTH, noise
from cerebras_tensorflow.sparsity.schedules import Schedule, UpdateSteps, read_schedule, read_update_steps
from cerebras_tensorflow.sparsity.selection import Balance, Mask, drop_and_grow, keep_largest
from cerebras_tensorflow.text import did_you_mean

Array = NDArray[np.generic]

_NO_SPARSITY = "sparsity is missing; expected a number in [0, 1), or a schedule. Only static from_zeros needs none."


class SparsityAlgorithm:
    """Chooses the weights that are in use. Base of all methods; alone it never changes the first choice.

    Args:
        sparsity: Share of the weights that are zero: a number in [0, 1), a list, or a schedule {"type": ...}. A method
            that never changes its choice may omit it if init_method is from_zeros.
        init_method: How the first mask is made: random, topk, balanced-topk, from_zeros, checkerboard, or a function
            of (weight, sparsity) that returns a mask.
        seed: Seed of random choices.
        in_groups: Number of groups of inputs that keep the same number of weights each. Only with random and topk.
        out_groups: The same for outputs.

    Raises:
        SettingsError: If a value is out of range.
    """

    def __init__(
        self,
        sparsity: Any = None,
        init_method: str | Callable[[Array, float], Any] = "random",
        seed: int | None = None,
        in_groups: int | None = None,
        out_groups: int | None = None,
    ) -> None:
        is_free = sparsity is None and init_method == "from_zeros"
        if sparsity is None and not is_free:
            raise SettingsError(_NO_SPARSITY)
        self.sparsity: Schedule = read_schedule("sparsity", 0.0 if is_free else sparsity, 1.0)
        if not callable(init_method) and init_method not in INIT_METHODS:
            raise SettingsError(
                f"unknown init_method {init_method!r}{did_you_mean(str(init_method), INIT_METHODS) or '.'} "
                f"Expected one of {', '.join(INIT_METHODS)}."
            )
        self.init_method = init_method
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or seed < 0):
            raise SettingsError(f"seed is {seed!r}; expected a whole number, 0 or more")
        self.seed = seed
        self.balance = _balance(in_groups, out_groups, init_method)

    @property
    def update_steps(self) -> UpdateSteps:
        """The steps at which masks change. Here: only the start of training."""
        return UpdateSteps(steps=(0,))

    @property
    def needs_gradient(self) -> bool:
        """Whether a change of masks needs the gradients of all weights, masked or not."""
        return False

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Check a weight before training.

        Raises:
            SettingsError: If the weight has no dim that the groups divide.
        """
        balance = self.balance
        if balance is None:
            return
        which = "in_groups" if balance.axis == -2 else "out_groups"
        if len(shape) < 2 or shape[balance.axis] % balance.num_groups:
            raise SettingsError(f"{which} is {balance.num_groups}, which does not divide {name} of shape {shape}")

    def target(self, step: int) -> np.float32:
        """Return the share of zeros that the schedule asks for at a step."""
        return self.sparsity.level(step, self.update_steps.num_before(step))

    def check_end(self, name: str, last_step: int) -> None:
        """Check that the schedule leaves some of a weight in use until the end of training.

        The last update decides: a schedule that does not stay in [0, 1) either rises or falls.

        Raises:
            SettingsError: If it does not.
        """
        last = self.update_steps.last(last_step)
        if last is not None and self.target(last) >= 1:
            raise SettingsError(
                f"the schedule of sparsity reaches 1 by step {last}, so all of {name} would be zero; expected less "
                "than 1 at each update. Change the schedule, or set update.stop to an earlier step."
            )

    def first_mask(self, name: str, weight: Array, seed: int = 0, step: int = 0) -> Mask:
        """Return the mask that a run starts with.

        Args:
            name: Name of the weight.
            weight: Its value.
            seed: Seed of the run, if the algorithm has none.
            step: Step at which the run starts; more than 0 if a dense checkpoint continues sparse.
        """
        level = self.target(step)
        if callable(self.init_method):
            return _checked(name, weight, self.init_method(weight, float(level)))
        make = INIT_METHODS[self.init_method]
        return make(name, weight, level, self.balance, self._seed(seed))

    def _seed(self, seed: int) -> int:
        return seed if self.seed is None else self.seed


class Static(SparsityAlgorithm):
    """The first choice stays."""

    def __init__(self, sparsity: Any = None, **settings: Any) -> None:
        super().__init__(sparsity, **settings)
        if self.sparsity.kind != "constant":
            raise SettingsError(
                "sparsity is a schedule; static needs a number in [0, 1). Use algorithm: gmp for a schedule."
            )


class DynamicSparsityAlgorithm(SparsityAlgorithm):
    """Base of methods that change the choice while training. A subclass has `update_mask`.

    `update_mask(p, mask, sparsity)` gets the weight after the step, its mask, and the target; it returns the new mask.
    It may have more parameters, by name: `gradient` (of all weights, before the mask), `step`, `name`, and `noise`, a
    function that returns uniform random numbers of the weight's shape.

    Args:
        sparsity: As in SparsityAlgorithm.
        update: When masks change: {"freq": 1, "start": 0, "stop": None} or {"steps": [...]}. If step 0 is an update
            step, training starts sparse; otherwise it is dense until the first update.
        settings: The others of SparsityAlgorithm.
    """

    def __init__(self, sparsity: Any = None, update: Any = None, **settings: Any) -> None:
        if sparsity is None:
            raise SettingsError(_NO_SPARSITY)
        super().__init__(sparsity, **settings)
        self._update_steps = read_update_steps(update)
        self._takes = set(inspect.signature(self.update_mask).parameters) - {"p", "mask", "sparsity"}

    @property
    @override
    def update_steps(self) -> UpdateSteps:
        return self._update_steps

    @property
    @override
    def needs_gradient(self) -> bool:
        return "gradient" in self._takes

    def update_mask(self, p: Array, mask: Mask, sparsity: np.float32) -> Any:
        """Return the new mask: booleans of the weight's shape, True for weights in use."""
        raise NotImplementedError(f"{type(self).__name__} needs a method update_mask(p, mask, sparsity)")

    def next_mask(
        self, name: str, weight: Array, mask: Mask, step: int, gradient: Array | None = None, seed: int = 0
    ) -> Mask:
        """Return the mask after an update step.

        Args:
            name: Name of the weight.
            weight: Its value after the step; masked weights are 0.
            mask: The mask of the step.
            step: Number of the step.
            gradient: Gradient of the step, before the mask; None if the algorithm does not need it.
            seed: Seed of the run, if the algorithm has none.
        """
        offered: Mapping[str, Any] = {
            "gradient": gradient,
            "step": step,
            "name": name,
            "noise": lambda: noise(self._seed(seed), RANDOM_GROWTH, step, name, weight.shape),
        }
        taken = {key: offered[key] for key in self._takes if key in offered}
        return _checked(name, weight, self.update_mask(weight, mask, self.target(step), **taken))


class GMP(DynamicSparsityAlgorithm):
    """Gradual magnitude pruning: the largest weights stay, fewer and fewer of them."""

    def __init__(self, sparsity: Any = None, **settings: Any) -> None:
        super().__init__(sparsity, **settings)
        if self.sparsity.kind == "constant":
            raise SettingsError(
                f"sparsity is {self.sparsity.values[0]:g} at all steps, so gmp would never change its choice. Use "
                "algorithm: static, or give a schedule."
            )

    @override
    def update_mask(self, p: Array, mask: Mask, sparsity: np.float32) -> Mask:
        return keep_largest(np.abs(p), sparsity, self.balance)


class SET(DynamicSparsityAlgorithm):
    """Sparse evolutionary training: the smallest weights make room for random others.

    Args:
        drop_fraction: Share of the weights in use to replace: a number in [0, 1], a list or a schedule.
        settings: Those of DynamicSparsityAlgorithm.
    """

    def __init__(self, sparsity: Any = None, drop_fraction: Any = 0.3, **settings: Any) -> None:
        super().__init__(sparsity, **settings)
        self.drop_fraction = read_schedule("drop_fraction", drop_fraction, 1.0, is_limit_included=True)

    @override
    def update_mask(  # type: ignore[override]  # `next_mask` passes what the method names
        self, p: Array, mask: Mask, sparsity: np.float32, step: int, noise: Callable[[], NDArray[np.float32]]
    ) -> Mask:
        dropped = self.drop_fraction.level(step, self.update_steps.num_before(step))
        return drop_and_grow(np.abs(p), noise(), mask, dropped, sparsity, self.balance)


class RigL(DynamicSparsityAlgorithm):
    """Rigging the lottery: the smallest weights make room for those with the largest gradients.

    Args:
        drop_fraction: Share of the weights in use to replace: a number in [0, 1], a list or a schedule.
        balance_in_groups: As in_groups.
        balance_out_groups: As out_groups.
        settings: Those of DynamicSparsityAlgorithm.
    """

    def __init__(
        self,
        sparsity: Any = None,
        drop_fraction: Any = 0.3,
        balance_in_groups: int | None = None,
        balance_out_groups: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(sparsity, **settings)
        self.drop_fraction = read_schedule("drop_fraction", drop_fraction, 1.0, is_limit_included=True)
        balance = _balance(balance_in_groups, balance_out_groups, self.init_method)
        if balance is not None and self.balance is not None:
            raise SettingsError("in_groups or out_groups is given twice; keep balance_in_groups or balance_out_groups")
        self.balance = balance or self.balance

    @override
    def update_mask(  # type: ignore[override]  # `next_mask` passes what the method names
        self, p: Array, mask: Mask, sparsity: np.float32, step: int, gradient: Array
    ) -> Mask:
        dropped = self.drop_fraction.level(step, self.update_steps.num_before(step))
        return drop_and_grow(np.abs(p), np.abs(gradient), mask, dropped, sparsity, self.balance)


def _balance(in_groups: Any, out_groups: Any, init_method: Any) -> Balance | None:
    if in_groups is not None and out_groups is not None:
        raise SettingsError("groups of inputs and of outputs are both given; keep one")
    for name, count in (("in_groups", in_groups), ("out_groups", out_groups)):
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
            raise SettingsError(f"{name} is {count!r}; expected a number of groups, 1 or more")
        if count is not None and init_method not in BALANCED_METHODS:
            raise SettingsError(
                f"init_method {init_method!r} does not make {name}; expected {' or '.join(BALANCED_METHODS)}, or no "
                "groups"
            )
    if in_groups is not None:
        return Balance(-2, in_groups)
    return Balance(-1, out_groups) if out_groups is not None else None


def _checked(name: str, weight: Array, mask: Any) -> Mask:
    """Return a mask that a user's function made.

    Raises:
        SettingsError: If it has another shape than the weight.
    """
    result = np.asarray(mask)
    if result.shape != weight.shape:
        raise SettingsError(f"the mask of {name} has shape {result.shape}; expected {weight.shape}")
    return result.astype(bool)
