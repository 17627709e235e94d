"""Hooks: what each of them is called with, sees and changes, and the public hooks of TensorFlow."""

import os

import numpy as np
import tensorflow as tf
from common import forever, linear, make, once, v1, weights

Spec = tf.estimator.EstimatorSpec


class _Tells(v1.train.SessionRunHook):
    """Notes its calls."""

    def __init__(self, name, calls):
        self.name = name
        self.calls = calls

    def begin(self):
        self.calls.append(f"{self.name} begin")

    def after_create_session(self, session, coord):
        self.calls.append(f"{self.name} created {isinstance(session, v1.Session)} {type(coord).__name__}")

    def before_run(self, context):
        self.calls.append(f"{self.name} before")

    def after_run(self, context, values):
        self.calls.append(f"{self.name} after")

    def end(self, session):
        self.calls.append(f"{self.name} end")


class _Listens(v1.train.CheckpointSaverListener):
    def __init__(self, calls):
        self.calls = calls

    def begin(self):
        self.calls.append("listener begin")

    def before_save(self, session, step):
        self.calls.append(f"listener before {step}")

    def after_save(self, session, step):
        self.calls.append(f"listener after {step}")

    def end(self, session, step):
        self.calls.append(f"listener end {step}")


def order_of_calls(run):
    calls = []

    def model_fn(features, labels, mode, params):
        spec = linear(features, labels, mode, params)
        return spec._replace(
            training_hooks=[_Tells("spec", calls)],
            training_chief_hooks=[_Tells("chief", calls)],
            evaluation_hooks=[_Tells("evaluation", calls)],
            prediction_hooks=[_Tells("prediction", calls)],
        )

    estimator = make(run, model_fn, save_checkpoints_steps=2)
    hooks = [_Tells("first", calls), _Tells("second", calls)]
    estimator.train(forever, hooks=hooks, steps=3, saving_listeners=[_Listens(calls)])
    run.note("train", list(calls))
    calls.clear()
    estimator.evaluate(once, hooks=hooks)
    run.note("evaluate", list(calls))
    calls.clear()
    list(estimator.predict(once, hooks=hooks))
    run.note("predict", list(calls))
    calls.clear()
    estimator.train(forever, steps=3, saving_listeners=[_Listens(calls)])
    run.note("again", calls)


def contexts_and_values(run):
    seen = []

    class Looks(v1.train.SessionRunHook):
        def before_run(self, context):
            original = context.original_args
            seen.append([len(original.fetches), original.feed_dict, context.stop_requested])
            return v1.train.SessionRunArgs(
                {"step": v1.train.get_global_step(), "list": ["w/Read/ReadVariableOp:0", ("b/Read/ReadVariableOp:0",)]}
            )

        def after_run(self, context, values):
            seen.append([values.results["step"], values.results["list"], values.options is not None])
            if len(seen) >= 4:
                context.request_stop()

    run.note("weights", weights(make(run).train(forever, hooks=[Looks()])))
    run.note("seen", seen)


def variables_and_ops_of_hooks(run):
    class Counts(v1.train.SessionRunHook):
        def begin(self):
            self.count = v1.get_variable("hook/count", [], tf.int32, v1.zeros_initializer(), trainable=False)
            self.add = v1.assign_add(self.count, 2)
            self.place = v1.placeholder(tf.float32, [])
            self.set = v1.global_variables()[-2].assign(tf.fill([], self.place))

        def after_run(self, context, values):
            context.session.run(self.add)

        def end(self, session):
            run.note("end", session.run(self.count))

    run.note("weights", weights(make(run).train(forever, hooks=[Counts()], steps=3)))


def a_hook_that_assigns(run):
    class Sets(v1.train.SessionRunHook):
        def begin(self):
            self.variables = {one.op.name: one for one in v1.trainable_variables()}
            self.set = v1.assign(self.variables["b"], 5.0)

        def after_create_session(self, session, coord):
            session.run(self.set)
            run.note("set", session.run(self.variables["b"]))
            self.variables["b"].load(7.0, session)

    return weights(make(run).train(forever, hooks=[Sets()], steps=1))


def public_hooks(run):
    folder = run.path("own")
    os.makedirs(folder)
    final = v1.train.FinalOpsHook({"one": "w/Read/ReadVariableOp:0"})
    hooks = [
        v1.train.StopAtStepHook(num_steps=5),
        v1.train.LoggingTensorHook({"w": "w/Read/ReadVariableOp:0"}, every_n_iter=2, at_end=True),
        v1.train.CheckpointSaverHook(folder, save_steps=2),
        v1.train.StepCounterHook(every_n_steps=2, output_dir=folder),
        v1.train.GlobalStepWaiterHook(0),
        final,
    ]
    estimator = make(run).train(forever, hooks=hooks)
    run.note("saved", estimator.latest_checkpoint())  # the caller's hook saves elsewhere
    run.note("final", final.final_ops_values)
    estimator = make(run, name="second").train(forever, hooks=hooks[:1])
    estimator.train(forever, hooks=[v1.train.StopAtStepHook(last_step=7)])
    run.note("last", estimator.get_variable_value("global_step"))
    run.attempt(
        "nan",
        lambda: bool(estimator.train(forever, hooks=[v1.train.NanTensorHook("w/Read/ReadVariableOp:0")], steps=1)),
    )


def summaries_of_hooks(run):
    def model_fn(features, labels, mode, params):
        spec = linear(features, labels, mode, params)
        v1.summary.scalar("mean", tf.reduce_mean(features["x"]))
        v1.summary.histogram("values", features["x"])
        own = v1.summary.scalar("own", spec.loss if spec.loss is not None else 0.0, collections=["mine"])
        hook = v1.train.SummarySaverHook(save_steps=2, output_dir=run.path("own"), summary_op=own)
        return spec._replace(training_hooks=[hook], evaluation_hooks=[hook])

    estimator = make(run, model_fn, save_summary_steps=2).train(forever, steps=4)
    estimator.evaluate(once)


def nan_tensor_hooks(run):
    def model_fn(features, labels, mode):
        w = v1.get_variable("w", [], initializer=v1.ones_initializer())
        step = v1.train.get_global_step()
        train_op = tf.group(v1.assign_add(step, 1), v1.assign_add(w, 1.0))
        with tf.control_dependencies([train_op]):
            bad = tf.math.log(2.5 - tf.cast(step.read_value(), tf.float32))
        hook = v1.train.NanTensorHook(bad, fail_on_nan_loss=False)
        return Spec(mode, loss=tf.reduce_mean(features["x"]), train_op=train_op, training_hooks=[hook])

    return make(run, model_fn).train(forever, steps=9).get_variable_value("w")


def early_stopping(run):
    estimator = make(run, save_checkpoints_steps=1)
    asked = []

    def should_stop():
        asked.append(1)
        return len(asked) == 3

    hook = tf.estimator.experimental.make_early_stopping_hook(estimator, should_stop, None, 1)
    run.note("weights", weights(estimator.train(forever, hooks=[hook], steps=20)))
    run.note("asked", len(asked))
    for name, words in {"both": (1, 1), "none": (None, None)}.items():
        run.attempt(
            name,
            lambda words=words: tf.estimator.experimental.make_early_stopping_hook(estimator, should_stop, *words),
        )
    run.attempt("no estimator", tf.estimator.experimental.make_early_stopping_hook, 5, should_stop)


def early_stopping_by_metric(run):
    experimental = tf.estimator.experimental
    makers = {
        "higher": (experimental.stop_if_higher_hook, "mae", 0.1),
        "lower": (experimental.stop_if_lower_hook, "mae", 0.01),
        "no increase": (experimental.stop_if_no_increase_hook, "loss", 2),
        "no decrease": (experimental.stop_if_no_decrease_hook, "loss", 1),
    }
    for name, (maker, *arguments) in makers.items():
        estimator = make(run, name=name)
        metrics = run.path(name, "eval")
        os.makedirs(metrics)
        with tf.Graph().as_default():
            writer = v1.summary.FileWriter(metrics)
            for step, value in ((1, 3.0), (3, 2.0), (5, 2.5)):
                values = [v1.Summary.Value(tag=tag, simple_value=value) for tag in ("mae", "loss")]
                writer.add_summary(v1.Summary(value=values), step)
            writer.close()
        hook = maker(estimator, *arguments, run_every_secs=None, run_every_steps=1)
        estimator.train(forever, hooks=[hook], steps=3)
        run.note(name, estimator.get_variable_value("global_step"))


def in_memory_evaluator(run):
    estimator = make(run)
    hook = tf.estimator.experimental.InMemoryEvaluatorHook(estimator, once, every_n_iter=2)
    return weights(estimator.train(forever, hooks=[hook], steps=5))


def listeners_that_stop(run):
    class Stops(v1.train.CheckpointSaverListener):
        def after_save(self, session, step):
            return step >= 4

    estimator = make(run, save_checkpoints_steps=2)
    estimator.train(forever, steps=10, saving_listeners=[Stops()])
    return estimator.get_variable_value("global_step")


def refused_hooks_and_listeners(run):
    estimator = make(run)
    run.attempt("hook", lambda: estimator.train(forever, hooks=[5], steps=1))
    run.attempt("a hook alone", lambda: bool(estimator.train(forever, hooks=v1.train.SessionRunHook(), steps=1)))
    run.attempt("evaluation hook", lambda: estimator.evaluate(once, hooks=["a"]))
    run.attempt("prediction hook", lambda: next(estimator.predict(once, hooks=["a"])))
    run.attempt("listener", lambda: estimator.train(forever, steps=1, saving_listeners=[5]))
    run.attempt("a hook as listener", lambda: estimator.train(forever, steps=1, saving_listeners=[_Tells("a", [])]))
    no_saves = make(run, name="no_saves", save_checkpoints_steps=None, save_checkpoints_secs=None)
    run.attempt("no saves", lambda: no_saves.train(forever, steps=1, saving_listeners=[_Listens([])]))


def errors_in_hooks(run):
    run.ignore_files()  # whether an event has been written depends on timing

    def fails(point):
        def fail(*args):
            raise ZeroDivisionError(point)

        hook = v1.train.SessionRunHook()
        setattr(hook, point, fail)
        return hook

    for point in ("begin", "after_create_session", "before_run", "after_run", "end"):
        estimator = make(run, name=point, save_checkpoints_steps=1)
        run.attempt(point, lambda one=estimator, at=point: bool(one.train(forever, hooks=[fails(at)], steps=2)))
        run.note(f"{point} checkpoint", os.path.basename(estimator.latest_checkpoint() or ""))


def hooks_that_raise_the_end(run):
    class Ends(v1.train.SessionRunHook):
        def __init__(self, error):
            self.error = error
            self.count = 0

        def after_run(self, context, values):
            self.count += 1
            if self.count == 2:
                raise self.error

    for name, error in {"range": tf.errors.OutOfRangeError(None, None, "end"), "stop": StopIteration()}.items():
        estimator = make(run, name=name)
        run.attempt(name, lambda one=estimator, e=error: weights(one.train(forever, hooks=[Ends(e)], steps=9)))


def hooks_of_an_evaluation(run):
    estimator = make(run).train(forever, steps=2)
    seen = []

    class Looks(v1.train.SessionRunHook):
        def before_run(self, context):
            return v1.train.SessionRunArgs([v1.train.get_global_step(), "b/Read/ReadVariableOp:0"])

        def after_run(self, context, values):
            seen.append(values.results)

        def end(self, session):
            seen.append(session.run("w/Read/ReadVariableOp:0"))

    run.note(
        "metrics", estimator.evaluate(once, hooks=[Looks(), v1.train.LoggingTensorHook(["b/Read/ReadVariableOp:0"], 1)])
    )
    run.note("seen", seen)
    stop = v1.train.StopAtStepHook(num_steps=1)
    run.attempt("stop", lambda: estimator.evaluate(once, hooks=[stop]))


def profiler(run):
    run.ignore_files()
    folder = run.path("profile")
    os.makedirs(folder)
    make(run).train(forever, hooks=[v1.train.ProfilerHook(save_steps=2, output_dir=folder)], steps=4)
    return sorted(os.listdir(folder))


def a_saver_of_a_hook(run):
    class Saves(v1.train.SessionRunHook):
        def begin(self):
            self.saver = v1.train.Saver({"weights": v1.trainable_variables()[0]})

        def end(self, session):
            self.path = self.saver.save(session, run.path("mine", "own.ckpt"), global_step=v1.train.get_global_step())

    os.makedirs(run.path("mine"))
    hook = Saves()
    make(run).train(forever, hooks=[hook], steps=2)
    reader = tf.train.load_checkpoint(hook.path)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def step_tensor_of_the_run(run):
    """The read of the global step beside a step is its value before the step or after it, as TensorFlow's hooks see it."""
    steps = []

    class Looks(v1.train.SessionRunHook):
        def begin(self):
            self.step = v1.train.get_global_step()

        def before_run(self, context):
            return v1.train.SessionRunArgs(self.step)

        def after_run(self, context, values):
            steps.append(context.session.run(self.step))

    make(run).train(forever, hooks=[Looks()], steps=3)
    return steps


def final_ops_and_feeds(run):
    class Feeds(v1.train.SessionRunHook):
        def begin(self):
            self.place = v1.placeholder_with_default(np.float32(1), [], name="rate")
            self.twice = self.place * 2

        def before_run(self, context):
            return v1.train.SessionRunArgs(self.twice, feed_dict={self.place: 4.0})

        def after_run(self, context, values):
            run.note("fed", values.results)
            run.note("default", context.session.run(self.twice))

    make(run).train(forever, hooks=[Feeds()], steps=1)
    both = [v1.train.FeedFnHook(lambda: {"w/Read/ReadVariableOp:0": np.zeros([3, 1], np.float32)}) for _ in range(2)]
    run.attempt("fed twice", lambda: make(run, name="twice").train(forever, hooks=both, steps=1))
