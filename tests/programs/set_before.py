"""Sets devices between keras_par's import and `kp.init()`, and starts a process that imports both, too."""

import json
import subprocess
import sys

import tensorflow as tf

import keras_par as kp

CHILD = "import tensorflow as tf, keras_par; tf.zeros([1]); print(tf.config.list_logical_devices()[0].name)"

[processor] = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * 2)
kp.init()
names = [device.name for device in tf.config.list_logical_devices("CPU")]
child = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True).stdout.strip()
print(f"devices: {json.dumps([kp.rank(), *names, child])}", flush=True)
kp.barrier()
