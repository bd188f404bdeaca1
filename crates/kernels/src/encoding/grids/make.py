"""Exports the codebooks of the IQ encodings to this directory, from the Python package `gguf` (pip install gguf numpy).

Each file is a list of entries, one byte per value (signed for iq1): 8 values per entry for iq1 and iq2, 4 for iq3.
"""

import pathlib

import numpy as np
from gguf import quants

here = pathlib.Path(__file__).parent
for name in ["IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"]:
    book = getattr(quants, name)
    book.init_grid()
    (here / f"{name.lower()}.bin").write_bytes(book.grid.astype(np.int8 if name == "IQ1_S" else np.uint8).tobytes())
(here / "signs.bin").write_bytes(quants.IQ2_XXS.ksigns)
