"""A derived formula as a value: what it says, under which assumptions, by which steps, and where its proof is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import sympy as sp

from optcc.errors import OptccError
from optcc.theory.symbols import P, X, describe, ell

Relation = Literal["=", "<=", ">="]
_INSIDE = {P: 97, X: sp.Rational(1, 3)}  # with 2 for the rest, a point inside the range of every symbol
_LATEX_RELATION = {"=": "=", "<=": r"\le", ">=": r"\ge"}


class DerivationError(OptccError):
    """A step of a derivation does not hold; the message names the step and the expression."""


class Step(NamedTuple):
    """One line of a derivation: what is done, and the expression it gives."""

    claim: str
    expression: Any


@dataclass(frozen=True)
class Result:
    """`left` `relation` `expression`, derived by `steps` under `assumptions`.

    `proof_id` names the entry of proofs/README.md that holds the written proof; `left` and `expression` are sympy.
    """

    id: str
    statement: str
    assumptions: tuple[str, ...]
    proof_id: str
    left: Any
    relation: Relation
    expression: Any
    steps: tuple[Step, ...]

    def text(self) -> str:
        """The derivation for a terminal."""
        lines = [f"{self.id}: {self.statement}", f"  {self.left} {self.relation} {self.expression}", "  where"]
        lines += [f"    {row.symbol}  {row.meaning} [{row.unit}], {row.range}" for row in self._quantities()]
        lines += ["  assuming", *(f"    {text}" for text in self.assumptions), "  derived by"]
        for number, (claim, expression) in enumerate(self.steps, 1):
            lines += [f"    {number}. {claim}", f"         {expression}"]
        return "\n".join([*lines, f"  proof: proofs/README.md, id {self.proof_id}"])

    def latex(self) -> str:
        """The derivation as a LaTeX fragment (amsmath)."""
        lines = [
            rf"\paragraph{{{_escape(self.id)}}} {_escape(self.statement)}",
            rf"\[ {sp.latex(self.left)} {_LATEX_RELATION[self.relation]} {sp.latex(self.expression)} \]",
            "Assuming: " + _escape("; ".join(self.assumptions)) + ".",
            r"\begin{enumerate}",
            *(rf"\item {_escape(claim)} \[ {sp.latex(expression)} \]" for claim, expression in self.steps),
            r"\end{enumerate}",
            f"Proof: proofs/README.md, id {_escape(self.proof_id)}.",
        ]
        return "\n".join(lines)

    def _quantities(self) -> Iterable[Any]:
        return describe(sp.Tuple(self.left, self.expression, *(step.expression for step in self.steps)))


def prove_nonnegative(expression: Any, ranges: dict[Any, tuple[Any, Any]]) -> Any:
    """Prove that a rational `expression` is >= 0 on a box, or raise DerivationError.

    `ranges` maps each symbol to (low, high), high may be oo; a bound may use symbols that come later in the mapping.
    A symbol becomes low + t, or (low + high t) / (1 + t), with t >= 0; when then every coefficient of numerator
    and denominator is nonnegative, so is the expression; the end t = oo is reached by continuity. Returns the
    expression, tidied.
    """
    given = expression
    slack = {symbol: sp.Dummy(f"t_{symbol}", nonnegative=True) for symbol in ranges}
    for symbol, (low, high) in ranges.items():
        t = slack[symbol]
        expression = expression.subs(symbol, low + t if high is sp.oo else (low + high * t) / (1 + t))
    top, bottom = sp.fraction(sp.cancel(sp.together(expression)))
    signs = [[bool(c >= 0) for c in sp.Poly(part, *slack.values()).coeffs()] for part in (top, bottom)]
    flipped = [[bool(c <= 0) for c in sp.Poly(part, *slack.values()).coeffs()] for part in (top, bottom)]
    if all(map(all, signs)) or all(map(all, flipped)):
        return tidy(given)
    raise DerivationError(f"cannot show that {given} >= 0: the numerator is {sp.expand(top)}")


def require_zero(expression: Any, step: str) -> Any:
    """Return 0 if sympy simplifies `expression` to it, else raise DerivationError naming `step`."""
    if sp.simplify(expression) != 0:
        raise DerivationError(f"{step}: {expression} is not zero")
    return sp.S.Zero


def tidy(expression: Any) -> Any:
    """The same rational expression, factored, with a denominator whose factors are positive and ordered by l."""
    top, bottom = sp.fraction(sp.factor(expression))
    parts = []
    for part in sp.Mul.make_args(bottom):
        flip = part.subs({symbol: _INSIDE.get(symbol, 2) for symbol in part.free_symbols}) < 0
        top = -top if flip else top
        parts.append(sp.collect(sp.expand(-part) if flip else part, ell))
    return sp.factor(top) / sp.Mul(*parts)


def exact(value: Fraction) -> Any:
    """A Fraction as a sympy Rational."""
    return sp.Rational(value.numerator, value.denominator)


def _escape(text: str) -> str:
    for char in "&%#_":
        text = text.replace(char, "\\" + char)
    return text.replace(">=", r"$\ge$").replace("<=", r"$\le$").replace("->", r"$\to$")
