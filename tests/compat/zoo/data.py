"""Inputs: TFRecords with sharding and skipping, text with lookup tables, grouped windows, functions of NumPy."""

import glob
import json
import os

import numpy as np
import tensorflow as tf

BATCH, LENGTH, VOCABULARY, MASKED = 4, 8, 40, 2
MODES = tf.estimator.ModeKeys


def shard_dataset(dataset, use_multiple_workers, input_context=None):
    """Shard by the input context, or else by the workers in TF_CONFIG."""
    if use_multiple_workers:
        if input_context:
            return dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
        if os.environ.get("TF_CONFIG"):
            config = json.loads(os.environ["TF_CONFIG"])
            workers = config["cluster"].get("worker", [])
            if len(workers) > 1:
                return dataset.shard(len(workers), config["task"]["index"])
    return dataset


def write_records(folder):
    """Write TFRecord files for the GPT and BERT models."""
    os.makedirs(folder, exist_ok=True)
    rng = np.random.RandomState(0)
    for number in range(2):
        with tf.io.TFRecordWriter(os.path.join(folder, f"examples_{number}.tfrecords")) as writer:
            for _ in range(16):
                ids = rng.randint(0, VOCABULARY, LENGTH)
                length = rng.randint(3, LENGTH + 1)
                mask = (np.arange(LENGTH) < length).astype(int)
                ints = {
                    "input_ids": ids,
                    "input_mask": mask,
                    "labels": np.roll(ids, -1),
                    "segment_ids": np.zeros(LENGTH, int),
                    "masked_lm_positions": rng.randint(0, length, MASKED),
                    "masked_lm_ids": rng.randint(0, VOCABULARY, MASKED),
                    "next_sentence_labels": rng.randint(0, 2, 1),
                    "label_ids": rng.randint(0, 3, LENGTH),
                    "start_positions": rng.randint(0, LENGTH, 1),
                    "end_positions": rng.randint(0, LENGTH, 1),
                    "unique_ids": rng.randint(0, 1000, 1),
                    "class": rng.randint(0, 3, 1),
                }
                feature = {k: tf.train.Feature(int64_list=tf.train.Int64List(value=v)) for k, v in ints.items()}
                weights = tf.train.FloatList(value=np.ones(MASKED))
                feature["masked_lm_weights"] = tf.train.Feature(float_list=weights)
                writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


def records_input(params, name, mode, input_context=None):
    section = params["train_input" if mode == MODES.TRAIN else "eval_input"]
    training = mode == MODES.TRAIN
    sizes = {
        **dict.fromkeys(("input_ids", "input_mask", "labels", "segment_ids", "label_ids"), LENGTH),
        **dict.fromkeys(("masked_lm_positions", "masked_lm_ids"), MASKED),
        **dict.fromkeys(("next_sentence_labels", "start_positions", "end_positions", "unique_ids", "class"), 1),
    }
    schema = {key: tf.io.FixedLenFeature([size], tf.int64) for key, size in sizes.items()}
    schema["masked_lm_weights"] = tf.io.FixedLenFeature([MASKED], tf.float32)

    def parsed(raw):
        features = tf.io.parse_single_example(raw, schema)
        features = {k: tf.cast(v, tf.int32) if v.dtype == tf.int64 else v for k, v in features.items()}
        if section.get("mixed_precision"):
            features["masked_lm_weights"] = tf.cast(features["masked_lm_weights"], tf.float16)
        labels = features.pop("labels")
        one = features.pop("class")[0]
        unused = {"gpt": True}.get(name[:3])
        keep = {"input_ids", "input_mask"} if unused else set(features)
        if params["model"].get("use_vsl"):
            labels = tf.where(features["input_mask"] > 0, labels, -1)
            features["masked_lm_ids"] = tf.where(features["masked_lm_ids"] > 20, features["masked_lm_ids"], -1)
        features = {key: value for key, value in features.items() if key in keep}
        if name == "bert":
            labels = one
        return features, (one if name in ("classifier", "linformer") else labels)

    files = tf.data.Dataset.list_files(os.path.join(section["data_dir"], "*.tfrecord*"), shuffle=False)
    files = shard_dataset(files, section.get("use_multiple_workers", False), input_context)
    data = files.interleave(tf.data.TFRecordDataset, cycle_length=2, num_parallel_calls=tf.data.experimental.AUTOTUNE)
    if training:
        if section.get("shuffle"):
            data = data.shuffle(buffer_size=10, seed=section.get("shuffle_seed"))
        data = data.repeat()
    data = data.map(parsed, num_parallel_calls=tf.data.experimental.AUTOTUNE)
    if name == "classifier":
        data = data.apply(
            tf.data.experimental.group_by_window(
                key_func=lambda features, label: tf.cast(tf.reduce_sum(features["input_mask"]) > 5, tf.int64),
                reduce_func=lambda key, window: window.batch(BATCH, drop_remainder=True),
                window_size=BATCH,
            )
        )
    else:
        data = data.batch(BATCH, drop_remainder=True)
    if section.get("skip_steps"):
        data = data.skip(section["skip_steps"])
    if mode == MODES.PREDICT and name in ("qa", "token_classifier"):
        data = data.map(lambda features, labels: features)
    return data.prefetch(buffer_size=tf.data.experimental.AUTOTUNE)


def write_text(folder):
    os.makedirs(folder, exist_ok=True)
    words = ["<pad>", "</s>", "<unk>", *(f"w{number}" for number in range(VOCABULARY - 3))]
    with open(os.path.join(folder, "vocab.txt"), "w") as file:
        file.write("\n".join(words))
    rng = np.random.RandomState(1)
    for number in range(2):
        with open(os.path.join(folder, f"text_{number}.txt"), "w") as file:
            for _ in range(16):
                file.write(" ".join(rng.choice(words[3:], LENGTH + 2)) + "\n")


def text_input(params, mode):
    """Lines become ids by a lookup table made inside input_fn; a NumPy function makes the decoder's input."""
    section = params["train_input" if mode == MODES.TRAIN else "eval_input"]
    table = tf.lookup.StaticHashTable(
        tf.lookup.TextFileInitializer(
            section["vocab_file"],
            tf.string,
            tf.lookup.TextFileIndex.WHOLE_LINE,
            tf.int64,
            tf.lookup.TextFileIndex.LINE_NUMBER,
        ),
        default_value=2,
    )

    def shifted(ids):
        return np.concatenate([[0], ids[:-1]]).astype(np.int32)

    def ids_of(line):
        ids = tf.cast(table.lookup(tf.strings.split([line]).values[:LENGTH]), tf.int32)
        ids.set_shape([LENGTH])
        before = tf.numpy_function(shifted, [ids], tf.int32)
        before.set_shape([LENGTH])
        ones = tf.ones([LENGTH], tf.int32)
        features = {"encoder_input_ids": ids, "decoder_input_ids": before, "encoder_mask": ones, "decoder_mask": ones}
        return features, ids

    files = sorted(glob.glob(os.path.join(section["data_dir"], "text_*.txt")))
    data = tf.data.TextLineDataset(
        shard_dataset(tf.data.Dataset.from_tensor_slices(files), section.get("use_multiple_workers"))
    )
    data = data.map(ids_of)
    if mode == MODES.TRAIN:
        data = data.shuffle(8, seed=3).repeat()
    return data.batch(BATCH, drop_remainder=True)


def image_input(params, mode, size, is_mask):
    rng = np.random.RandomState(2)
    images = rng.rand(16, size, size, 1).astype(np.float32)
    labels = (images > 0.5).astype(np.float16) if is_mask else rng.randint(0, 10, 16).astype(np.int32)
    data = tf.data.Dataset.from_tensor_slices((images if is_mask else (255 * images).astype(np.uint8), labels))
    if not is_mask:
        data = data.map(lambda image, label: (tf.cast(image, tf.float16) / 255.0, label))
    if mode == MODES.TRAIN:
        data = data.repeat()
    return data.batch(BATCH, drop_remainder=True)


def input_fn_for(mode):
    def input_fn(params=None, input_context=None):
        name = params["model"]["name"]
        if name in ("t5", "transformer"):
            return text_input(params, mode)
        if name in ("fc_mnist", "unet"):
            return image_input(params, mode, 28 if name == "fc_mnist" else 8, name == "unet")
        return records_input(params, name, mode, input_context)

    return input_fn


train_input_fn = input_fn_for(MODES.TRAIN)
eval_input_fn = input_fn_for(MODES.EVAL)
predict_input_fn = input_fn_for(MODES.PREDICT)
