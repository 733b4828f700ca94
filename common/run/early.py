"""Settings that JAX and OpenBLAS read when they start. Import this before JAX."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # otherwise XLA:CPU logs a page for each program in its cache
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # otherwise its threads fight XLA's: SVDs took 400 ms instead of 1
