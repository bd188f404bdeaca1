"""The script `pellucid`: the command line in the extension module of the package `pellucid`.

It loads the extension module alone. Importing the package would also import numpy, which takes ten
times as long as the command needs to start.
"""

import os
import shutil
import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path


def main() -> None:
    """Runs the command with the arguments of this process, and ends the process."""
    package = find_spec("pellucid")
    folders = package.submodule_search_locations if package else None
    files = [
        file for folder in folders or () for file in Path(folder).glob("_core.*") if file.suffix in (".so", ".pyd")
    ]
    if not files:
        sys.exit("pellucid: the package has no extension module; install it again")
    spec = spec_from_file_location("_core", files[0], loader=ExtensionFileLoader("_core", str(files[0])))
    if spec is None or spec.loader is None:
        sys.exit(f"pellucid: {files[0]} cannot be loaded")
    core = module_from_spec(spec)
    spec.loader.exec_module(core)
    program = shutil.which(sys.argv[0]) or sys.argv[0]
    code = core.run_command(os.path.abspath(program), ["pellucid", *sys.argv[1:]])
    # Without the interpreter's shutdown, which has nothing to do.
    os._exit(code)
