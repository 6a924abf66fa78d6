"""Fits the rational approximations of `silentgrad.mathematics.special`, and writes them to `_coefficients.py`.

    python tools/fit_special.py            # about two minutes; needs mpmath

With v ~ N(e, V), S = e^2 + V and rho = V / S in [0, 1], the expected logarithm is

    E[log v^2] = log S + psi(rho),   psi(rho) = psi(1) + (1 - rho)^2 zeta(rho),   psi'(rho) = -(1 - rho) omega(rho)

where zeta and omega are smooth, positive and of order one on the whole interval. In units where S = 1 the derivatives
G_n = d^n/de^n E[log v^2] are functions of rho too (times e, if n is odd); the seventh and eighth start a recurrence
that is stable downwards. Each function is fitted as a ratio of two
polynomials by reweighted linear least squares on Chebyshev nodes (Sanathanan and Koerner 1963, with Lawson's weights
to even out the error), in 120 digits, against the closed forms in Dawson's function and 2F2.
"""

from pathlib import Path

import mpmath as mp

mp.mp.dps = 120
NODES = 200
DEGREE = {
    "ZETA": {"float32": 7, "float64": 20},
    "OMEGA": {"float32": 9, "float64": 20},
    "SEVENTH": {"float32": 15},
    "EIGHTH": {"float32": 15},
}
OUTPUT = Path(__file__).parents[1] / "src" / "silentgrad" / "mathematics" / "_coefficients.py"


def asymptotic(t: mp.mpf) -> tuple[mp.mpf, mp.mpf]:
    """Dawson's function and its integral for large t, from E[f(e + s)] = sum_k V^k / (2^k k!) f^(2k)(e)."""
    ratio, log_square, dawson, k = 1 / (2 * t * t), mp.log(t * t), 1 / (2 * t), 1
    while True:
        term = 2 * mp.factorial(2 * k - 1) / (2**k * mp.factorial(k)) * ratio**k
        log_square -= term
        dawson += mp.fac2(2 * k - 1) / (2 ** (k + 1) * t ** (2 * k + 1))
        k += 1
        if term < mp.mpf(10) ** -30:
            return dawson, (log_square + 2 * mp.log(2) + mp.euler) / 4


def zeta_omega(rho: mp.mpf) -> tuple[mp.mpf, mp.mpf]:
    """The two functions at one point, through t = e / sqrt(2 V)."""
    t = mp.sqrt((1 - rho) / (2 * rho))
    if t < 9:
        dawson = mp.sqrt(mp.pi) / 2 * mp.exp(-t * t) * mp.erfi(t)
        integral = t * t / 2 * mp.hyp2f2(1, 1, mp.mpf(3) / 2, 2, -t * t)
    else:
        dawson, integral = asymptotic(t)
    zeta = (4 * integral + mp.log(rho)) / (1 - rho) ** 2
    omega = (dawson / (t * rho) - 1) / (rho * (1 - rho))
    return zeta, omega


def seventh_eighth(rho: mp.mpf) -> tuple[mp.mpf, mp.mpf]:
    """G_7 / e and G_8 at e^2 = 1 - rho, V = rho, by Stein's identity upwards; 120 digits survive its cancellation."""
    e = mp.sqrt(1 - rho)
    g = [mp.mpf(0), mp.sqrt(2 * mp.pi / rho) * mp.exp(-e * e / (2 * rho)) * mp.erfi(e / mp.sqrt(2 * rho))]
    g.append((2 - e * g[1]) / rho)
    for n in range(1, 7):
        g.append(-(e * g[n + 1] + n * g[n]) / rho)
    return g[7] / e, g[8]


def horner(coefficients: list[mp.mpf], x: mp.mpf) -> mp.mpf:
    return mp.polyval(coefficients[::-1], x)


def fit(nodes: list[mp.mpf], values: list[mp.mpf], degree: int) -> tuple[mp.mpf, list[mp.mpf], list[mp.mpf]]:
    """Numerator and denominator, ascending powers, with the smallest maximal error seen: relative for a function that
    keeps its sign, else relative to its largest value."""
    largest = max(map(abs, values))
    keeps_sign = min(values) * max(values) > 0
    scales = [abs(f) if keeps_sign else largest for f in values]
    q, weights, best = [mp.mpf(1)] + [mp.mpf(0)] * degree, [mp.mpf(1)] * len(nodes), None
    for iteration in range(10):
        a, b = mp.matrix(len(nodes), 2 * degree + 1), mp.matrix(len(nodes), 1)
        for i, (x, f) in enumerate(zip(nodes, values, strict=True)):
            w = weights[i] / horner(q, x) / scales[i]
            for j in range(degree + 1):
                a[i, j] = w * x**j
                if j:
                    a[i, degree + j] = -w * f * x**j
            b[i] = w * f
        solution = mp.lu_solve(a.T * a, a.T * b)
        p = [solution[j] for j in range(degree + 1)]
        q = [mp.mpf(1)] + [solution[degree + j] for j in range(1, degree + 1)]
        fitted = [horner(p, x) / horner(q, x) for x in nodes]
        errors = [abs(y - f) / scale for y, f, scale in zip(fitted, values, scales, strict=True)]
        worst = max(errors)
        if best is None or worst < best[0]:
            best = (worst, p, q)
        if iteration > 1:
            weights = [w * mp.sqrt(e / worst + mp.mpf("1e-3")) for w, e in zip(weights, errors, strict=True)]
    return best


def main() -> None:
    nodes = [(1 + mp.cos(mp.pi * (k + mp.mpf(1) / 2) / NODES)) / 2 for k in range(NODES)]
    pairs = zip(*map(zeta_omega, nodes), strict=True), zip(*map(seventh_eighth, nodes), strict=True)
    values = dict(zip(DEGREE, (function for pair in pairs for function in pair), strict=True))
    lines = [
        '"""Made by tools/fit_special.py; do not edit. Numerators over denominators, ascending powers of rho."""',
        "",
    ]
    for name, function in values.items():
        lines.append(f"{name} = {{")
        for dtype, degree in DEGREE[name].items():
            error, *polynomials = fit(nodes, list(function), degree)
            print(f"{name:7} {dtype}: degree {degree}, largest error {mp.nstr(error, 2)}")
            lines.append(f'    "{dtype}": (')
            for polynomial in polynomials:
                lines += ["        ("] + [f"            {float(c)!r}," for c in polynomial] + ["        ),"]
            lines.append("    ),")
        lines += ["}", ""]
    OUTPUT.write_text("\n".join(lines).rstrip("\n") + "\n")


if __name__ == "__main__":
    main()
