"""The three modes in which a model_fn is called, as tf.estimator names them."""


class ModeKeys:
    """Mode strings: TRAIN, EVAL, PREDICT."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"
