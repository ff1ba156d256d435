# SPDX-License-Identifier: Apache-2.0
"""Installs the peers as ordinary packages into a folder outside the source tree.

The folder has, and another machine needs, only:

    run/amx .. run/avx2             llama_timer with the libraries of one build, and info.json
    run/onednn                      onednn_gemm with its libraries, and info.json
    python                          the gguf package

llama.cpp comes as the source of llama-cpp-python from PyPI, built by pip with clang: GCC 12 drops
the stores to the tile configuration, and its AMX build crashes. Downloads and the build tree lie in
the cache folder, not in the environment, so that the environment can be carried.
"""
import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

BENCH = pathlib.Path(__file__).resolve().parent.parent
# Best first. The flag is what /proc/cpuinfo must list to run it.
VARIANTS = {"amx": "amx_int8", "avx512": "avx512bw", "avx_vnni": "avx_vnni", "avx2": "avx2"}
TARGETS = ("native", "sapphirerapids")
BASE_OPTIONS = ("SSE42", "AVX", "AVX2", "BMI2", "FMA", "F16C")
WIDE = ("amx", "avx512")
AVX512_OPTIONS = ("AVX512", "AVX512_VBMI", "AVX512_VNNI", "AVX512_BF16")
AMX_OPTIONS = ("AMX_TILE", "AMX_INT8", "AMX_BF16")
# clang before 15 defines __AMXINT8__ where GCC and later clang define __AMX_INT8__, the name that
# llama.cpp asks for; without it an "AMX build" by clang 14 silently has no AMX code.
AMX_FLAGS = tuple(f"-D__{name}__" for name in AMX_OPTIONS)
NO_AMX_FLAGS = ("-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16")
# Present on every machine that can run the rest; carrying them would mix C libraries.
SYSTEM_LIBRARIES = r"(ld-linux|linux-vdso|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)\.so)"


class Failed(Exception):
    """Why a peer is not there; becomes the reason in its rows."""


def machine_variants():
    """The variants that this machine can run, best first."""
    flags = pathlib.Path("/proc/cpuinfo").read_text().split()
    return [variant for variant, flag in VARIANTS.items() if flag in flags]


def run(command, log, **keywords):
    """Runs `command` at low priority with its output in the file `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(log, "w") as output:
            subprocess.run(["nice", "-n", "10", *map(str, command)], check=True, stdout=output,
                           stderr=subprocess.STDOUT, **keywords)
    except (subprocess.CalledProcessError, OSError) as error:
        lines = log.read_text(errors="replace").strip().splitlines()
        raise Failed(f"{lines[-1].strip() if lines else error} (log: {log})") from error


def pip(arguments, log, **keywords):
    options = ["--disable-pip-version-check", "--no-warn-script-location"]
    # A wheel that pip has cached could have been built with other CMAKE_ARGS.
    install = ["--no-cache-dir", *options] if arguments[0] == "install" else ["--no-cache-dir"]
    run([sys.executable, "-m", "pip", arguments[0], *install, *arguments[1:]], log, **keywords)


def llama_options(target, variant):
    """CMake options, and compiler flags for ggml alone.

    Every option is set either way because all variants share one build tree. With an explicit
    target -march adds what a native build on that machine would have and no option names
    (AVX512-FP16 for an f16 cache, tuning).
    """
    on = set(BASE_OPTIONS)
    if variant in WIDE:
        on.update(AVX512_OPTIONS)
    if variant == "avx_vnni":
        on.add("AVX_VNNI")
    if variant == "amx":
        on.update(AMX_OPTIONS)
    native = target == "native" and variant in WIDE
    options = {f"GGML_{name}": name in on
               for name in BASE_OPTIONS + ("AVX_VNNI",) + AVX512_OPTIONS + AMX_OPTIONS}
    options["GGML_NATIVE"] = native
    options["LLAVA_BUILD"] = False
    flags = []
    if variant in WIDE:
        flags += [] if native else [f"-march={target}"]
        flags += AMX_FLAGS if variant == "amx" else NO_AMX_FLAGS
    return [f"-D{name}={'ON' if value else 'OFF'}" for name, value in options.items()], flags


def llama_source(build):
    """The unpacked source of the package, and the tools that pip needs to build it."""
    found = sorted(build.glob("llama_cpp_python-*/pyproject.toml"))
    if not found:
        pip(["download", "--no-deps", "--no-binary", "llama-cpp-python", "-d", build,
             "llama-cpp-python"], build / "download.log")
        for archive in build.glob("llama_cpp_python-*.tar.gz"):
            with tarfile.open(archive) as files:
                files.extractall(build)
        found = sorted(build.glob("llama_cpp_python-*/pyproject.toml"))
    if not (build / "tools").exists():
        pip(["install", "--target", build / "tools", "scikit-build-core"], build / "tools.log")
    return found[-1].parent


def bundle(program, folder, search=""):
    """Puts `program` and the libraries it loads, stripped, into `folder`."""
    environment = dict(os.environ, LD_LIBRARY_PATH=str(search))
    loaded = subprocess.run(["ldd", program], env=environment, check=True, capture_output=True,
                            text=True).stdout
    folder.mkdir(parents=True, exist_ok=True)
    files = {program.name: program}
    for name, path in re.findall(r"^\s*(\S+) => (\S+) ", loaded, re.M):
        if not re.match(SYSTEM_LIBRARIES, name):
            files[name] = pathlib.Path(path)
    for name, path in files.items():
        shutil.copyfile(path, folder / name)
        shutil.copymode(path, folder / name)
        subprocess.run(["strip", "--strip-unneeded", folder / name], check=True)


def compile_timer(compiler, source, program, flags, log):
    # DT_RPATH, unlike DT_RUNPATH, also serves the libraries of the libraries.
    run([compiler, "-std=c++20", "-O2", BENCH / source, "-o", program, *flags,
         "-Wl,--disable-new-dtags,-rpath,$ORIGIN"], log)


def compiler_version(compiler):
    text = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
    return text.splitlines()[0] if text else ""


def install_llama(env, build, target, variant):
    for tool in ("clang", "clang++", "cmake", "ninja"):
        if not shutil.which(tool):
            raise Failed(f"{tool} is not installed: `tools/setup clang` does it")
    source = llama_source(build)
    options, flags = llama_options(target, variant)
    # Included by CMake after project(ggml): the flags reach ggml only, and libllama, which is most
    # of the time, is compiled once for all variants.
    include = build / "ggml_flags.cmake"
    include.write_text(f"add_compile_options({' '.join(flags)})\n")
    environment = dict(
        os.environ, CC="clang", CXX="clang++", CMAKE_GENERATOR="Ninja", PYTHONPATH=build / "tools",
        CMAKE_ARGS=" ".join([*options, f"-DCMAKE_PROJECT_ggml_INCLUDE={include}"]))
    environment.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count()))
    site = build / "site" / f"{target}-{variant}"
    pip(["install", "-v", "--upgrade", "--target", site, "--no-deps", "--no-build-isolation",
         "--config-settings", f"build-dir={build / 'tree'}", source],
        build / f"{target}-{variant}.log", env=environment)
    libraries = site / "llama_cpp" / "lib"
    program = site / "llama_timer"
    compile_timer("clang++", "llama_timer.cc", program,
                  ["-I", site / "include", "-L", libraries, f"-Wl,-rpath-link,{libraries}",
                   "-lllama", "-lggml-cpu", "-lggml-base"], build / "timer.log")
    folder = env / "run" / variant
    bundle(program, folder, libraries)
    info = {"package": source.name.replace("_", "-"), "target": target,
            "compiler": compiler_version("clang"), "options": options, "flags": flags}
    (folder / "info.json").write_text(json.dumps(info, indent=1) + "\n")


def install_onednn(env, build):
    if not pathlib.Path("/usr/include/oneapi/dnnl/dnnl.hpp").exists():
        raise Failed("oneDNN is not installed (Debian: libdnnl-dev)")
    build.mkdir(parents=True, exist_ok=True)
    program = build / "onednn_gemm"
    compile_timer("c++", "onednn_gemm.cc", program, ["-ldnnl"], build / "onednn.log")
    folder = env / "run" / "onednn"
    bundle(program, folder)
    info = {"package": "libdnnl-dev", "compiler": compiler_version("c++")}
    (folder / "info.json").write_text(json.dumps(info, indent=1) + "\n")


def install_gguf(env, build, target):
    """The gguf package. For another machine only its pure Python part: numpy, the one compiled
    dependency, belongs to a Python version and is taken from that machine."""
    packages = ["gguf"] if target == "native" else ["--no-deps", "gguf", "pyyaml"]
    pip(["install", "--upgrade", "--target", env / "python", *packages], build / "gguf.log")
    if target != "native":
        for compiled in (env / "python").rglob("*.so"):
            compiled.unlink()


def prepare(env, build, target):
    """Installs what is missing in `env`; returns {peer: reason} of what could not be installed."""
    variants = machine_variants() if target == "native" else list(VARIANTS)
    missing = {v: f"this machine has no {v.upper()}" for v in VARIANTS if v not in variants}
    steps = {variant: (lambda v=variant: install_llama(env, build, target, v))
             for variant in variants}
    steps["onednn"] = lambda: install_onednn(env, build)
    steps["gguf"] = lambda: install_gguf(env, build, target)
    for peer, install in steps.items():
        done = env / "python" / "gguf" if peer == "gguf" else env / "run" / peer / "info.json"
        if done.exists():
            continue
        print(f"peers: installing {peer}", file=sys.stderr, flush=True)
        try:
            install()
        except (Failed, OSError, subprocess.CalledProcessError) as error:
            missing[peer] = str(error)
            with contextlib.suppress(OSError):
                done.unlink()
    return missing
