"""Cuts a training step in two: the gradients of one micro-batch, and the update that takes their totals.

`tf.gradients` and the optimizers mark the gradients of variables while model_fn runs. The first part is everything that
a mark depends on. The second part is everything else that the train op and the summaries need. Where the second part
takes a value of the first one, the cut replaces that value:

- A gradient becomes its total over all micro-batches.
- A floating-point value that the train op takes (the loss, a batch mean for a moving average) becomes the mean over all
  micro-batches. An op that turns it into a bool or an integer (is the loss finite?) runs on the mean.
- A value in a branch of tf.cond is carried like any other, and is zero where the branch is not taken.
- A scalar that a summary takes becomes the mean. Any other value that a summary takes is that of the first micro-batch.

If a step cannot be cut in this way, the compiler raises an error. It also raises an error if a step changes a weight by
values of the batch, but by no marked gradient: micro-batches would train it wrongly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cerebras_tensorflow.compiler.micro_batches.nodes import (
    READ,
    always_nodes,
    branch_nodes,
    placeholder_node,
    sink_nodes,
    variable_nodes,
)
from cerebras_tensorflow.compiler.micro_batches.waits import without_waits_for_writes
from cerebras_tensorflow.compiler.micro_batches.writes import find_writes, variables_of
from cerebras_tensorflow.errors import CompileError
from cerebras_tensorflow.graph.conditionals import Deadness
from cerebras_tensorflow.graph.cost import Output
from cerebras_tensorflow.graph.loops import frames_of_nodes
from cerebras_tensorflow.graph.micro_batches import (
    CARRIED,
    TOTAL,
    Carried,
    Gradient,
    Mark,
    is_mean_over_micro_batches,
    is_summary,
)
from cerebras_tensorflow.graph.nodes import Endpoint, GraphDef, NodeDef, NodeTable, copied, parse_input
from cerebras_tensorflow.graph.topological_order import order_nodes

_ADVICE = (
    "Compute gradients of the loss with tf.gradients, Optimizer.compute_gradients or tf.GradientTape, with respect to "
    "the variables themselves, and outside of tf.function; or set micro_batch_size to none and num_csx to 1"
)

_FLOATS = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class Request:
    """The step to cut.

    Attributes:
        graph_def: The step, pruned.
        train_node: Name of the train op.
        roots: Names of all ops that a run may fetch.
        sources: Names of the batch's placeholders.
        marks: The gradients that model_fn computes.
        trainable: VarHandleOps of the trainable variables.
        outputs: Outputs of each op.
        is_stored: Whether the total of a dense gradient, given by its op and output, is in the weight store.
    """

    graph_def: GraphDef
    train_node: str
    roots: Sequence[str]
    sources: Sequence[str]
    marks: Sequence[Mark]
    trainable: frozenset[str]
    outputs: Mapping[str, Sequence[Output]]
    is_stored: Callable[[str, Output], bool]


@dataclass(frozen=True)
class Parts:
    """The two parts of a step.

    Attributes:
        gradient, update: Their graphs.
        gradient_roots, update_roots: Ops that a run may fetch.
        update_sources: Placeholders of the update.
        stored: VarHandleOps of the totals in the store, by the number of the gradient.
        gradients, carried: The values that pass from the first part to the second.
    """

    gradient: GraphDef
    gradient_roots: tuple[str, ...]
    update: GraphDef
    update_roots: tuple[str, ...]
    update_sources: tuple[str, ...]
    stored: Mapping[int, str]
    gradients: tuple[Gradient, ...]
    carried: tuple[Carried, ...]


def split(request: Request) -> Parts:
    """Return the two parts of a training step.

    Raises:
        CompileError: If the step cannot be cut.
    """
    return _Cut(request).parts()


class _Cut:
    """The cut of one step. Takes the argument of `split`."""

    def __init__(self, request: Request) -> None:
        self._request = request
        marked = [name for mark in request.marks for name in _ops_of(mark)]
        self._table = NodeTable(without_waits_for_writes(request.graph_def, marked, request.train_node))
        self._marks = [mark for mark in request.marks if mark.values in self._table.nodes]
        self._upstream = self._table.ancestors(name for mark in self._marks for name in _ops_of(mark))
        self._writes = find_writes(self._table)
        self._varying = self._find_varying()
        has_branches = any(node.op == "Switch" for node in self._table.nodes.values())
        self._deadness = Deadness(self._table, order_nodes(self._table) if has_branches else [])
        self._frames = frames_of_nodes(self._table)
        self._totals = dict(self._name_totals())  # op of a mark -> input string of its total
        self._kept: dict[str, NodeDef] = {}  # nodes of the update
        self._carried: dict[tuple[Endpoint, bool], Carried] = {}
        self._inputs: dict[str, str] = {}  # placeholder -> input string of the value in the branch that takes it
        self._placeholders: list[NodeDef] = []  # for the carried values
        self._always: list[NodeDef] = []  # carried values of branches

    def parts(self) -> Parts:
        """Return the two parts."""
        request, table = self._request, self._table
        roots = [root for root in request.roots if root in self._varying]
        later = [root for root in request.roots if root not in self._varying]
        after = [name for name, inputs in table.inputs.items() if Endpoint(request.train_node, -1) in inputs]
        trained = [request.train_node, *(name for name in after if name not in self._varying)]
        self._keep(trained, is_training=True)
        self._check_updates()
        self._keep(later, is_training=False)
        used = self._used()
        gradients = [self._gradient(mark) for mark in used]
        carried = tuple(self._carried.values())
        taken = [one.tensor.split(":")[0] for one in carried]
        placeholders = [name for gradient in gradients for name in gradient.totals]
        return Parts(
            gradient=self._first_part([*roots, *taken], used),
            gradient_roots=(*roots, *taken, *(gradient.sink for gradient in gradients)),
            update=self._second_part(used),
            update_roots=(*trained, *later),
            update_sources=(*placeholders, *(one.placeholder for one in carried)),
            stored={
                number: self._totals[mark.values].removesuffix(READ)
                for number, mark in enumerate(used)
                if self._is_stored(mark)
            },
            gradients=tuple(gradients),
            carried=carried,
        )

    def _find_varying(self) -> set[str]:
        """Return the nodes of one micro-batch: those that depend on the batch, but on no total, write or summary."""
        table = self._table
        first = {name for name, node in table.nodes.items() if is_summary(node.op)} | self._writes
        first |= {user for mark in self._marks for name in _ops_of(mark) for user in table.consumers[name]}
        first |= {self._request.train_node}
        first -= self._upstream
        once = (first | table.descendants(first)) - self._upstream
        reached: set[str] = set()
        pending = [source for source in self._request.sources if source in table.nodes]
        while pending:
            name = pending.pop()
            if name not in reached and name not in once:
                reached.add(name)
                pending.extend(table.consumers[name])
        return reached

    def _name_totals(self) -> Iterable[tuple[str, str]]:
        """Yield (op of a mark, input string of its total)."""
        for number, mark in enumerate(self._marks):
            if self._is_stored(mark):
                yield mark.values, f"{TOTAL}{number}{READ}"
                continue
            yield mark.values, f"{TOTAL}{number}/values"
            if mark.rows is not None:
                yield mark.rows, f"{TOTAL}{number}/rows"

    def _keep(self, roots: Iterable[str], is_training: bool) -> None:
        """Keep the nodes that the update needs for some roots, with inputs from micro-batches replaced.

        Args:
            roots: Names of ops.
            is_training: True: the train op needs them. False: summaries or other ops that a run may fetch need them.
        """
        pending = list(roots)
        while pending:
            name = pending.pop()
            if name in self._kept:
                continue
            if name in self._request.sources:
                raise CompileError(self._refused(name))
            inputs: list[str] = []
            for endpoint in self._table.inputs[name]:
                replacement = self._replacement(endpoint, name, is_training)
                if replacement is None:
                    pending.append(endpoint.node)
                    replacement = str(endpoint)
                if replacement:
                    inputs.append(replacement)
            node = copied(self._table.nodes[name])
            del node.input[:]
            node.input.extend(inputs)
            self._kept[name] = node

    def _replacement(self, endpoint: Endpoint, user: str, is_training: bool) -> str | None:
        """Return the input that a kept node takes in place of one of the step: None for the same, empty for none."""
        if endpoint.node in self._totals and user not in self._upstream:
            return "" if endpoint.is_control else self._totals[endpoint.node]
        if endpoint.node not in self._varying:
            return None
        if endpoint.is_control:
            return ""  # the update starts after all micro-batches
        if is_training and not self._is_floating(endpoint):
            return None
        return self._carry(endpoint, user, is_training)

    def _refused(self, source: str) -> str:
        user = next(name for name in self._table.consumers[source] if name in self._kept)
        return (
            f"micro-batches: the train op takes {user} ({self._table.nodes[user].op}), which depends on the batch and "
            "is not a floating-point value. There is no rule for its total over micro-batches. Use a floating-point "
            "value, of which the update takes the mean, or set micro_batch_size to none."
        )

    def _carry(self, endpoint: Endpoint, user: str, is_training: bool) -> str:
        """Return the input that takes a value of the micro-batches."""
        output = self._output(endpoint)
        rank = None if output.shape is None else len(output.shape)
        is_floating = self._is_floating(endpoint)
        is_mean = is_floating if is_training else is_mean_over_micro_batches(is_floating, rank)
        key = (endpoint, is_mean)
        if key not in self._carried:
            self._check_place(endpoint, user)
            placeholder = f"{CARRIED}{len(self._carried)}"
            branches = self._deadness.branches_of_output(endpoint)
            tensor = endpoint
            if branches:
                tensor = Endpoint(f"{placeholder}/always", 0)
                self._always += always_nodes(tensor.node, endpoint, branches, output)
            nodes, self._inputs[placeholder] = branch_nodes(placeholder, branches, output)
            self._carried[key] = Carried(f"{tensor.node}:{tensor.port}", placeholder, is_mean)
            self._placeholders += [placeholder_node(placeholder, output), *nodes]
            self._keep([parse_input(condition).node for condition, _ in branches], is_training)
        return self._inputs[self._carried[key].placeholder]

    def _check_place(self, endpoint: Endpoint, user: str) -> None:
        """Check that each micro-batch has one value of an endpoint, or none has.

        Raises:
            CompileError: If it is in a loop, or in a branch whose condition depends on the batch.
        """
        what = f"micro-batches: the update takes {endpoint} ({self._table.nodes[endpoint.node].op}) for {user}, "
        if self._frames.get(endpoint.node):
            raise CompileError(
                f"{what}a value of the batch inside a while loop. There is no rule for its mean over micro-batches. "
                "Compute the value outside of the loop, or set micro_batch_size to none and num_csx to 1."
            )
        for condition, _ in self._deadness.branches_of_output(endpoint):
            if parse_input(condition).node in self._varying:
                raise CompileError(
                    f"{what}inside a branch of tf.cond whose condition depends on the batch, so micro-batches may take "
                    "different branches. Compute the value outside of tf.cond, or set micro_batch_size to none and "
                    "num_csx to 1."
                )

    def _check_updates(self) -> None:
        """Check that every change of a trainable variable uses a marked gradient.

        Raises:
            CompileError: If the update of a variable takes a value of the batch, and none of the gradients.
        """
        by_gradient = self._reached_from(self._totals.values())
        by_other_value = self._reached_from(one.placeholder for one in self._carried.values())
        writes = [name for name in self._kept if name in self._writes]
        for name in writes:
            trained = sorted(variables_of(self._table, name) & self._request.trainable)
            if name in by_other_value and name not in by_gradient and trained:
                raise CompileError(
                    f"micro-batches: {name} ({self._kept[name].op}) changes {trained[0]} by a value of the batch that "
                    f"is not a gradient we know. {_ADVICE}."
                )
        if not by_gradient.intersection(writes):
            raise CompileError(f"micro-batches: the train op {self._request.train_node} takes no gradient. {_ADVICE}.")

    def _reached_from(self, inputs: Iterable[str]) -> set[str]:
        """Return the nodes of the update that depend on one of the given new nodes through data edges."""
        users: dict[str, list[str]] = {}
        for name, node in self._kept.items():
            for text in node.input:
                if not text.startswith("^"):
                    users.setdefault(text.split(":")[0], []).append(name)
        reached: set[str] = set()
        pending = [user for name in inputs for user in users.get(name, ())]
        while pending:
            name = pending.pop()
            if name not in reached:
                reached.add(name)
                pending.extend(users.get(name, ()))
        return reached

    def _used(self) -> list[Mark]:
        """Return the marks whose total the update takes."""
        taken = {text for node in self._kept.values() for text in node.input}
        return [mark for mark in self._marks if any(self._totals[name] in taken for name in _ops_of(mark))]

    def _gradient(self, mark: Mark) -> Gradient:
        totals = () if self._is_stored(mark) else tuple(self._totals[name] for name in _ops_of(mark))
        scope = self._totals[mark.values].rsplit("/", 1)[0]
        return Gradient(mark, f"{scope}/sink", self._output(Endpoint(mark.values, 0)).dtype, totals)

    def _first_part(self, roots: Iterable[str], used: Sequence[Mark]) -> GraphDef:
        """Return the graph of the gradients of a micro-batch. Each sink comes right after its gradient."""
        table = self._table
        following: dict[str, list[NodeDef]] = {}
        for number, mark in enumerate(used):
            ops = _ops_of(mark)
            dtypes = [self._output(Endpoint(name, 0)).dtype for name in ops]
            last = max(ops, key=lambda name: table.index[name])
            following.setdefault(last, []).extend(sink_nodes(self._gradient(mark).sink, number, ops, dtypes))
        handles = [name for name, node in table.nodes.items() if node.op == "VarHandleOp"]
        sources = [name for name in self._request.sources if name in table.nodes]
        marked = [name for mark in used for name in _ops_of(mark)]
        always = {node.name for node in self._always}
        taken = [parse_input(text).node for node in self._always for text in node.input]
        known = [name for name in (*roots, *taken) if name not in always]
        wanted = table.ancestors([*known, *marked, *handles, *sources])
        result = GraphDef(versions=table.graph_def.versions, library=table.graph_def.library)
        for mark in used:
            if self._is_stored(mark):  # both parts have the same variables
                result.node.extend(self._total_nodes(mark)[:1])
        for node in table.graph_def.node:
            if node.name in wanted:
                result.node.append(node)
                result.node.extend(following.get(node.name, ()))
        result.node.extend(self._always)
        return result

    def _second_part(self, used: Sequence[Mark]) -> GraphDef:
        """Return the graph of the update."""
        nodes = self._table.graph_def.node
        result = GraphDef(versions=self._table.graph_def.versions, library=self._table.graph_def.library)
        for mark in used:
            result.node.extend(self._total_nodes(mark))
        result.node.extend(self._placeholders)
        kept = [node for node in nodes if node.name in self._kept or node.op == "VarHandleOp"]
        result.node.extend(self._kept.get(node.name, node) for node in kept)
        return result

    def _total_nodes(self, mark: Mark) -> list[NodeDef]:
        """Return the nodes that give the update a total."""
        output = self._output(Endpoint(mark.values, 0))
        if self._is_stored(mark):
            return variable_nodes(self._totals[mark.values].removesuffix(READ), output)
        return [
            placeholder_node(self._totals[name], self._output(Endpoint(name, 0)), mark.rows is not None)
            for name in _ops_of(mark)
        ]

    def _is_stored(self, mark: Mark) -> bool:
        return mark.rows is None and self._request.is_stored(mark.values, self._output(Endpoint(mark.values, 0)))

    def _output(self, endpoint: Endpoint) -> Output:
        return self._request.outputs[endpoint.node][endpoint.port]

    def _is_floating(self, endpoint: Endpoint) -> bool:
        return self._output(endpoint).dtype in _FLOATS


def _ops_of(mark: Mark) -> list[str]:
    """Return the ops of a mark: values, and rows if it is sparse."""
    return [name for name in (mark.values, mark.rows) if name is not None]
