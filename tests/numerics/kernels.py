"""CPU kernels of TensorFlow whose results might depend on threads, timing or buffers, on inputs that would show it.

Run as a program it computes all of them several times, with some of the inputs held by another op or not, and prints
the different results of each as hashes: python -m tests.numerics.kernels INTRA_OP_THREADS REPEATS IS_DETERMINISTIC
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
raw = tf.raw_ops
ROWS, WIDTH, SEGMENTS = 60_000, 16, 7


def numbers(*shape: int) -> Any:
    """Numbers of many magnitudes, so that a sum shows its order; made by an op, so that buffers can be reused."""
    random = np.random.default_rng(sum(shape))
    values = random.normal(size=shape) * 10.0 ** random.integers(-4, 4, shape)
    return v1.placeholder_with_default(values.astype(np.float32), shape) * 1.0


def segments(count: int = ROWS, ordered: bool = False) -> Any:
    """Segment of each row: few segments, so that many rows fall together."""
    ids = np.random.default_rng(1).integers(0, SEGMENTS, count).astype(np.int32)
    return v1.placeholder_with_default(np.sort(ids) if ordered else ids, [count]) + 0


def sparse(rows: int = 300, columns: int = 400, share: float = 0.2) -> tuple[Any, Any]:
    """Indices and values of a sparse matrix."""
    filled = np.argwhere(np.random.default_rng(2).random((rows, columns)) < share)
    return tf.constant(filled, tf.int64), numbers(len(filled))


def variable(*shape: int) -> Any:
    """A variable, and the op that sets it to ones at the beginning of each run."""
    made = v1.get_variable(f"v{len(v1.global_variables())}", shape, initializer=v1.ones_initializer())
    return made, made.assign(tf.ones(shape))


ROW_OPS = ("Add", "Sub", "Min", "Max", "Update")


def scattered(name: str) -> Callable[[], Any]:
    """A variable after an update in which each row occurs many times."""

    def build() -> Any:
        target, begun = variable(SEGMENTS, WIDTH)
        updates, indices = numbers(ROWS, WIDTH), segments()
        updates = 1 + 1e-5 * tf.tanh(updates) if name.endswith(("Mul", "Div")) else updates
        with tf.control_dependencies([begun]):
            if "Nd" in name:
                update = getattr(raw, name)(ref=target.handle, indices=indices[:, None], updates=updates)
            else:
                update = getattr(raw, name)(resource=target.handle, indices=indices, updates=updates)
        with tf.control_dependencies([update]):
            return target.read_value()

    return build


SPARSE_UPDATES: dict[str, tuple[Any, ...]] = {  # slots, and the scalars before and after gradient and indices
    "Adadelta": (("accum", "accum_update"), {"lr": 0.1, "rho": 0.9, "epsilon": 1e-6}),
    "Adagrad": (("accum",), {"lr": 0.1}),
    "AdagradV2": (("accum",), {"lr": 0.1, "epsilon": 1e-6}),
    "CenteredRMSProp": (("mg", "ms", "mom"), {"lr": 0.1, "rho": 0.9, "momentum": 0.5, "epsilon": 1e-6}),
    "Ftrl": (("accum", "linear"), {"lr": 0.1, "l1": 0.01, "l2": 0.01, "lr_power": -0.5}),
    "KerasMomentum": (("accum",), {"lr": 0.1, "momentum": 0.9}),
    "Momentum": (("accum",), {"lr": 0.1, "momentum": 0.9}),
    "ProximalAdagrad": (("accum",), {"lr": 0.1, "l1": 0.01, "l2": 0.01}),
    "ProximalGradientDescent": ((), {"alpha": 0.1, "l1": 0.01, "l2": 0.01}),
    "RMSProp": (("ms", "mom"), {"lr": 0.1, "rho": 0.9, "momentum": 0.5, "epsilon": 1e-6}),
}


def sparse_update(name: str) -> Callable[[], Any]:
    """A variable and its slots after a sparse update in which each row occurs many times."""

    def build() -> Any:
        slots, scalars = SPARSE_UPDATES[name]
        made = {slot: variable(SEGMENTS, WIDTH) for slot in ("var", *slots)}
        with tf.control_dependencies([begun for _, begun in made.values()]):
            update = getattr(raw, f"ResourceSparseApply{name}")(
                **{slot: target.handle for slot, (target, _) in made.items()},
                **{scalar: tf.constant(number) for scalar, number in scalars.items()},
                grad=tf.tanh(numbers(ROWS, WIDTH)),
                indices=segments(),
            )
        with tf.control_dependencies([update]):
            return tf.stack([target.read_value() for target, _ in made.values()])

    return build


def gradient(build: Callable[[Any], Any], *shape: int) -> Callable[[], Any]:
    """The gradient of an op's sum with weights."""

    def make() -> Any:
        x = numbers(*shape)
        y = build(x)
        return tf.convert_to_tensor(tf.gradients(y, x, grad_ys=numbers(*y.shape.as_list()))[0])

    return make


def convolution_gradient(which: int) -> Callable[[], Any]:
    def build() -> Any:
        x, w = numbers(8, 24, 24, 8), numbers(3, 3, 8, 16)
        y = tf.nn.conv2d(x, w, 1, "SAME")
        return tf.gradients(y, [x, w], grad_ys=numbers(8, 24, 24, 16))[which]

    return build


def depthwise_gradient(which: int) -> Callable[[], Any]:
    def build() -> Any:
        x, w = numbers(8, 24, 24, 8), numbers(3, 3, 8, 2)
        y = tf.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME")
        return tf.gradients(y, [x, w], grad_ys=numbers(8, 24, 24, 16))[which]

    return build


def batch_norm(which: int) -> Callable[[], Any]:
    def build() -> Any:
        x, scale, offset = numbers(16, 12, 12, 8), numbers(8), numbers(8)
        y, mean, _ = v1.nn.fused_batch_norm(x, scale, offset)
        return [y, mean, *tf.gradients(y, [x, scale, offset], grad_ys=numbers(16, 12, 12, 8))][which]

    return build


def sparse_times_dense(adjoint: bool = False) -> Callable[[], Any]:
    def build() -> Any:
        indices, values = sparse()
        dense = numbers(300 if adjoint else 400, 32)
        return raw.SparseTensorDenseMatMul(
            a_indices=indices, a_values=values, a_shape=[300, 400], b=dense, adjoint_a=adjoint
        )

    return build


def sparse_csr() -> Any:
    indices, values = sparse()
    matrix = raw.SparseTensorToCSRSparseMatrix(indices=indices, values=values, dense_shape=[300, 400])
    return raw.SparseMatrixMatMul(a=matrix, b=numbers(400, 32))


def sparse_reduce() -> Any:
    indices, values = sparse()
    return raw.SparseReduceSum(input_indices=indices, input_values=values, input_shape=[300, 400], reduction_axes=[0])


def crop_and_resize_gradient() -> Any:
    boxes = tf.constant(np.random.default_rng(3).random((200, 4)).astype(np.float32))
    return raw.CropAndResizeGradImage(
        grads=numbers(200, 8, 8, 3),
        boxes=boxes,
        box_ind=segments(200) % 2,
        image_size=[2, 16, 16, 3],
        T=tf.float32,
    )


def nce() -> Any:
    weights, inputs = numbers(50, WIDTH), numbers(64, WIDTH)
    sampled = (tf.constant([3, 7, 7, 9], tf.int64), tf.ones([64, 1]), tf.ones([4]))
    loss = tf.nn.nce_loss(weights, numbers(50), segments(64)[:, None], inputs, 4, 50, sampled_values=sampled)
    return tf.convert_to_tensor(tf.gradients(loss, weights)[0])


def ctc() -> Any:
    labels = tf.sparse.from_dense(np.ones([4, 5], np.int32))
    logits = numbers(20, 4, 9) * 1e-3
    return tf.gradients(v1.nn.ctc_loss(labels, logits, tf.fill([4], 20)), logits)[0]


KERNELS: dict[str, Callable[[], Any]] = {
    "AddN": lambda: raw.AddN(inputs=[numbers(500, WIDTH) * float(n) for n in range(1, 6)]),
    "AccumulateNV2": lambda: raw.AccumulateNV2(
        inputs=[numbers(500, WIDTH) * float(n) for n in range(1, 6)], shape=[500, WIDTH]
    ),
    **{f"ResourceScatter{name}": scattered(f"ResourceScatter{name}") for name in (*ROW_OPS, "Mul", "Div")},
    **{f"ResourceScatterNd{name}": scattered(f"ResourceScatterNd{name}") for name in ROW_OPS},
    **{f"ResourceSparseApply{name}": sparse_update(name) for name in SPARSE_UPDATES},
    "ScatterNd": lambda: raw.ScatterNd(
        indices=segments()[:, None], updates=numbers(ROWS, WIDTH), shape=[SEGMENTS, WIDTH]
    ),
    "TensorScatterAdd": lambda: raw.TensorScatterAdd(
        tensor=numbers(SEGMENTS, WIDTH), indices=segments()[:, None], updates=numbers(ROWS, WIDTH)
    ),
    "TensorScatterUpdate": lambda: raw.TensorScatterUpdate(
        tensor=numbers(SEGMENTS, WIDTH), indices=segments()[:, None], updates=numbers(ROWS, WIDTH)
    ),
    "SegmentSum": lambda: raw.SegmentSum(data=numbers(ROWS, WIDTH), segment_ids=segments(ordered=True)),
    "SegmentMean": lambda: raw.SegmentMean(data=numbers(ROWS, WIDTH), segment_ids=segments(ordered=True)),
    "UnsortedSegmentSum": lambda: raw.UnsortedSegmentSum(
        data=numbers(ROWS, WIDTH), segment_ids=segments(), num_segments=SEGMENTS
    ),
    "UnsortedSegmentProd": lambda: raw.UnsortedSegmentProd(
        data=numbers(ROWS, WIDTH), segment_ids=segments(), num_segments=SEGMENTS
    ),
    "SparseSegmentSum": lambda: raw.SparseSegmentSum(
        data=numbers(500, WIDTH), indices=segments(ROWS) * 70, segment_ids=segments(ordered=True)
    ),
    "SparseSegmentSqrtNGrad": lambda: raw.SparseSegmentSqrtNGrad(
        grad=numbers(SEGMENTS, WIDTH),
        indices=segments(),
        segment_ids=segments(ordered=True),
        output_dim0=SEGMENTS,
    ),
    "SparseTensorDenseMatMul": sparse_times_dense(),
    "SparseTensorDenseMatMul (adjoint)": sparse_times_dense(adjoint=True),
    "SparseMatrixMatMul": sparse_csr,
    "SparseReduceSum": sparse_reduce,
    "BiasAddGrad": lambda: raw.BiasAddGrad(out_backprop=numbers(ROWS, WIDTH)),
    "FusedBatchNormV3": batch_norm(0),
    "FusedBatchNormV3 (mean)": batch_norm(1),
    "FusedBatchNormGradV3": batch_norm(2),
    "FusedBatchNormGradV3 (scale)": batch_norm(3),
    "Mean, SquaredDifference (moments)": lambda: tf.stack(tf.nn.moments(numbers(64, 12, 12, 8), [0, 1, 2])),
    "Sum (all)": lambda: tf.reduce_sum(numbers(1000, 999)),
    "Sum (rows)": lambda: tf.reduce_sum(numbers(1000, 999), 0),
    "Sum (columns)": lambda: tf.reduce_sum(numbers(1000, 999), 1),
    "Mean (all)": lambda: tf.reduce_mean(numbers(1000, 999)),
    "Prod (all)": lambda: tf.reduce_prod(1 + 1e-6 * tf.tanh(numbers(1000, 999))),
    "EuclideanNorm": lambda: tf.math.reduce_euclidean_norm(numbers(1000, 999)),
    "L2Loss": lambda: tf.nn.l2_loss(numbers(1000, 999)),
    "Cumsum": lambda: tf.cumsum(numbers(1000, 999)),
    "MatMul": lambda: tf.matmul(numbers(300, 2000), numbers(2000, 200)),
    "MatMul (vector)": lambda: tf.matmul(numbers(1, 20000), numbers(20000, 8)),
    "BatchMatMulV2": lambda: tf.matmul(numbers(6, 60, 700), numbers(6, 700, 50)),
    "Einsum": lambda: tf.einsum("abc,cd->abd", numbers(6, 60, 700), numbers(700, 50)),
    "Softmax": lambda: tf.nn.softmax(numbers(500, 1000) * 1e-3),
    "SparseSoftmaxCrossEntropyWithLogits": lambda: tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=segments(500), logits=numbers(500, 1000) * 1e-3
    ),
    "Conv2D": lambda: tf.nn.conv2d(numbers(8, 24, 24, 8), numbers(3, 3, 8, 16), 1, "SAME"),
    "Conv2DBackpropInput": convolution_gradient(0),
    "Conv2DBackpropFilter": convolution_gradient(1),
    "DepthwiseConv2dNativeBackpropInput": depthwise_gradient(0),
    "DepthwiseConv2dNativeBackpropFilter": depthwise_gradient(1),
    "Conv3DBackpropFilterV2": lambda: raw.Conv3DBackpropFilterV2(
        input=numbers(2, 8, 8, 8, 4),
        filter_sizes=[3, 3, 3, 4, 8],
        out_backprop=numbers(2, 8, 8, 8, 8),
        strides=[1] * 5,
        padding="SAME",
    ),
    "AvgPoolGrad": gradient(lambda x: tf.nn.avg_pool2d(x, 3, 1, "SAME"), 8, 24, 24, 8),
    "MaxPoolGrad": gradient(lambda x: tf.nn.max_pool2d(x, 3, 1, "SAME"), 8, 24, 24, 8),
    "LRNGrad": gradient(tf.nn.local_response_normalization, 4, 12, 12, 16),
    "ResizeBilinearGrad": gradient(lambda x: v1.image.resize_bilinear(x, [40, 40]), 4, 12, 12, 3),
    "ResizeBicubicGrad": gradient(lambda x: v1.image.resize_bicubic(x, [40, 40]), 4, 12, 12, 3),
    "ResizeNearestNeighborGrad": gradient(lambda x: v1.image.resize_nearest_neighbor(x, [40, 40]), 4, 12, 12, 3),
    "CropAndResizeGradImage": crop_and_resize_gradient,
    "Dilation2DBackpropInput": gradient(
        lambda x: raw.Dilation2D(
            input=x, filter=numbers(3, 3, 3), strides=[1] * 4, rates=[1] * 4, padding="SAME"
        ),
        4, 12, 12, 3,
    ),
    "DenseBincount": lambda: raw.DenseBincount(
        input=segments(), size=SEGMENTS, weights=numbers(ROWS), binary_output=False
    ),
    "Bincount": lambda: raw.Bincount(arr=segments(), size=SEGMENTS, weights=numbers(ROWS)),
    "SparseBincount": lambda: raw.SparseBincount(
        indices=np.arange(ROWS)[:, None],
        values=segments(),
        dense_shape=np.array([ROWS]),
        size=SEGMENTS,
        weights=numbers(ROWS),
    ),
    "RaggedBincount": lambda: raw.RaggedBincount(
        splits=np.arange(0, ROWS + 1, ROWS // 10), values=segments(), size=SEGMENTS, weights=numbers(ROWS)
    ),
    "ParallelDynamicStitch": lambda: raw.ParallelDynamicStitch(
        indices=[segments(ROWS // 10) for _ in range(40)], data=[numbers(ROWS // 10, WIDTH) * n for n in range(40)]
    ),
    "HistogramFixedWidth": lambda: tf.histogram_fixed_width(numbers(ROWS), [-1.0, 1.0]),
    "Gather gradient (IndexedSlices)": gradient(lambda x: tf.gather(x, segments()), SEGMENTS, WIDTH),
    "GatherNd gradient": gradient(lambda x: tf.gather_nd(x, segments()[:, None]), SEGMENTS, WIDTH),
    "NCE gradient": nce,
    "CTCLoss": ctc,
    "FakeQuantWithMinMaxVarsPerChannelGradient": lambda: raw.FakeQuantWithMinMaxVarsPerChannelGradient(
        gradients=numbers(ROWS, WIDTH), inputs=numbers(ROWS, WIDTH), min=-tf.ones([WIDTH]), max=tf.ones([WIDTH])
    ).backprop_wrt_max,
    "AdjustContrastv2": lambda: tf.image.adjust_contrast(numbers(4, 40, 40, 3), 2.0),
    "Svd": lambda: tf.linalg.svd(numbers(40, 30), compute_uv=False),
    "FFT": lambda: tf.abs(tf.signal.fft(tf.cast(numbers(64, 512), tf.complex64))),
    "TopKV2": lambda: tf.cast(tf.math.top_k(tf.cast(segments(), tf.float32), 100).indices, tf.float32),
    "UniqueV2": lambda: tf.cast(tf.unique(segments())[0], tf.float32),
}  # fmt: skip


def results(name: str, repeats: int, threads: int) -> list[str]:
    """Return the different results of one kernel as hashes, or the error that it ends in."""
    with tf.Graph().as_default() as graph:
        value = tf.identity(KERNELS[name](), name="value")
        inputs = [tensor for tensor in value.op.inputs[0].op.inputs if tensor.dtype == tf.float32]
        config = v1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=4)
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        different = set()
        with v1.Session(graph=graph, config=config) as session:
            session.run(v1.global_variables_initializer())
            for number in range(repeats):
                held = [tensor for place, tensor in enumerate(inputs) if number >> place & 1]
                computed = np.asarray(session.run([value, *held])[0])
                different.add(hashlib.blake2b(computed.tobytes(), digest_size=6).hexdigest())
        return sorted(different)


def main() -> None:
    """Print the results of all kernels as JSON."""
    threads, repeats, is_deterministic = map(int, sys.argv[1:4])
    if is_deterministic:
        tf.config.experimental.enable_op_determinism()
    outcome = {}
    for name in KERNELS:
        try:
            outcome[name] = results(name, repeats, threads)
        except Exception as error:  # noqa: BLE001 (what TensorFlow refuses is a result too)
            outcome[name] = [f"{type(error).__name__}: {str(error)[:160]}"]
    print("RESULTS", json.dumps(outcome))


if __name__ == "__main__":
    main()
