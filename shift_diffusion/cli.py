"""The command `shift-diffusion`. Only the chosen sub-command's modules are imported: `--help` must not load torch."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

DEFAULT_MODEL = "models:/shift-diffusion@champion"
VARIANTS = ("float32", "static_int8", "dynamic_int8", "weight_int8")
SAMPLERS = ("ddpm", "ddim", "dpmpp_2m", "euler", "heun")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code: 0 done, 1 failed, 2 bad input, 130 Ctrl-C."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    from shift_diffusion.config import ConfigError

    try:
        return options.run(options)
    except ConfigError as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped by Ctrl-C", file=sys.stderr)
        return 130


def build_parser() -> argparse.ArgumentParser:
    from shift_diffusion import __version__

    parser = argparse.ArgumentParser(prog="shift-diffusion", description="Train, judge and use image diffusion models.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_check(commands)
    _add_sample(commands)
    _add_diagnose(commands)
    _add_report(commands)
    _add_results(commands)
    _add_registry(commands)
    return parser


def _add_check(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("check", help="everything wrong with params.yaml, data and machine, in seconds")
    parser.add_argument("params", nargs="?", default="params.yaml", help="file to check (default: params.yaml)")
    parser.set_defaults(run=_check)


def _check(options: argparse.Namespace) -> int:
    from shift_diffusion import check

    return check.main(options.params)


def _add_sample(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("sample", help="draw pictures with the champion, another version or a model folder")
    parser.add_argument("prompt", nargs="?", help="what to draw; leave out for pictures without a prompt")
    parser.add_argument("-n", "--count", type=int, default=16, metavar="N", help="number of pictures (default: 16)")
    parser.add_argument("--seed", type=int, default=0, help="picture k is drawn from seed + k (default: 0)")
    parser.add_argument(
        "--model",
        default=DEFAULT_MODEL,
        help=f"models:/NAME@ALIAS, models:/NAME/NUMBER, or a folder like models/stage-3 (default: {DEFAULT_MODEL})",
    )
    parser.add_argument("--variant", choices=VARIANTS, default="float32", help="of a registered model")
    parser.add_argument("--sampler", choices=SAMPLERS, help="default: the one the model was evaluated with")
    parser.add_argument("--steps", type=int, metavar="N", help="network evaluations; default: as evaluated")
    parser.add_argument("--guidance", type=float, metavar="X", help="1 = none, more follows the prompt more closely")
    parser.add_argument("--negative-prompt", metavar="TEXT", help="what guidance moves away from (instead of nothing)")
    parser.add_argument(
        "--batch-size", type=int, default=16, metavar="N", help="pictures drawn at once; no effect on them"
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, mps (default: cpu)")
    parser.add_argument("--grid", action="store_true", help="one picture with all of them instead of a file for each")
    parser.add_argument("-o", "--out", default="out", metavar="FOLDER", help="where the PNG files go (default: out)")
    parser.set_defaults(run=_sample)


def _sample(options: argparse.Namespace) -> int:
    from shift_diffusion.drawing import draw

    return _with_registry(lambda: draw(options))


def _add_diagnose(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("diagnose", help="name what ails a training run, and the cure")
    parser.add_argument("folder", nargs="?", default="reports", help="reports of a run (default: reports)")
    parser.set_defaults(run=_diagnose)


def _diagnose(options: argparse.Namespace) -> int:
    from shift_diffusion.evaluation import diagnose

    return diagnose.main(options.folder)


def _add_report(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("report", help="one page with the pictures and numbers of the last pipeline run")
    parser.add_argument("-o", "--out", default="report.html", help="file to write (default: report.html)")
    parser.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> int:
    from shift_diffusion.evaluation.report import write_report
    from shift_diffusion.tracking.location import code_root

    write_report(code_root(), options.out)
    print(options.out)
    return 0


def _add_results(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("results", help="where the pictures, the numbers and the model of the last run are")
    parser.add_argument("root", nargs="?", default=".", help="the project (default: the working directory)")
    parser.set_defaults(run=_results)


def _results(options: argparse.Namespace) -> int:
    from shift_diffusion import results

    return results.main(options.root)


def _add_registry(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("registry", help="which model is champion, and why; change it")
    parser.add_argument("--name", default="shift-diffusion", help="registered model (default: shift-diffusion)")
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="versions with aliases and metrics, newest first")
    listing.add_argument("--decisions", action="store_true", help="every decision ever taken, with its reason")
    listing.set_defaults(run=_registry_list)
    promote = actions.add_parser("promote", help="make a version champion, whatever the gate says")
    promote.add_argument("version", type=int)
    promote.add_argument("--reason", default="promoted by hand", help="is stored with the decision")
    promote.set_defaults(run=_registry_promote)
    rollback = actions.add_parser("rollback", help="make the previous champion champion again")
    rollback.set_defaults(run=_registry_rollback)


def _registry_list(options: argparse.Namespace) -> int:
    from shift_diffusion.registry.listing import print_decisions, print_versions

    show = print_decisions if options.decisions else print_versions
    return _with_registry(lambda: show(options.name))


def _registry_promote(options: argparse.Namespace) -> int:
    from shift_diffusion.registry.aliases import promote
    from shift_diffusion.registry.listing import change

    return _with_registry(lambda: change(lambda store: promote(store, options.name, options.version, options.reason)))


def _registry_rollback(options: argparse.Namespace) -> int:
    from shift_diffusion.registry.aliases import rollback
    from shift_diffusion.registry.listing import change

    return _with_registry(lambda: change(lambda store: rollback(store, options.name)))


def _with_registry(action) -> int:
    """Trouble with the store is said in one line, without the password of its address."""
    from shift_diffusion.tracking.store import TrackingError

    try:
        action()
    except TrackingError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
