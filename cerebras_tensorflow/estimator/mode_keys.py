"""The modes of model_fn, with the names of tf.estimator."""


class ModeKeys:
    """Mode strings: TRAIN, EVAL, PREDICT."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"
