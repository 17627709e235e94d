"""spleeter 2.4.2: the U-Net that separates two instruments, on noise instead of audio."""

import numpy as np
import tensorflow as tf
from spleeter.model import model_fn
from tiny import MODEL_DIR, NUMBERS

PARAMS = {
    "mix_name": "mix",
    "instrument_list": ["vocals", "accompaniment"],
    "sample_rate": 8000,
    "frame_length": 256,
    "frame_step": 64,
    "T": 64,
    "F": 64,
    "n_channels": 2,
    "n_chunks_per_song": 1,
    "separation_exponent": 2,
    "mask_extension": "zeros",
    "learning_rate": 1e-4,
    "batch_size": 2,
    "model": {"type": "unet.unet", "params": {"conv_n_filters": [2, 2, 4, 4, 4, 4]}},
}


def spectrograms():
    def noise():
        return NUMBERS.rand(2, 64, 64, 2).astype(np.float32)

    names = PARAMS["instrument_list"]
    features = {"mix_spectrogram": noise(), "mix_stft": (noise() + 0j).astype(np.complex64)}
    return tf.data.Dataset.from_tensor_slices((features, {f"{name}_spectrogram": noise() for name in names})).batch(2)


def waveforms():
    features = {"waveform": NUMBERS.rand(4096, 2).astype(np.float32), "audio_id": "noise"}
    return tf.data.Dataset.from_tensors(features)


def serving():
    features = {
        "waveform": tf.compat.v1.placeholder(tf.float32, [None, 2]),
        "audio_id": tf.compat.v1.placeholder(tf.string),
    }
    return tf.estimator.export.ServingInputReceiver(features, features)


estimator = tf.estimator.Estimator(model_fn, MODEL_DIR, tf.estimator.RunConfig(tf_random_seed=3), PARAMS)
estimator.train(lambda: spectrograms().repeat(), max_steps=2)
metrics = estimator.evaluate(spectrograms)
print("METRICS", metrics["global_step"], sorted(metrics))
row = next(estimator.predict(waveforms, yield_single_examples=False))
print("ROW", sorted(row), row["vocals"].shape)
path = estimator.export_saved_model(MODEL_DIR, serving)
print("EXPORT", sorted(tf.saved_model.load(path.decode()).signatures))
