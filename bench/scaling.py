"""Code that the bench/scale_* commands share: the resources of a process, and a plot."""
import importlib.machinery
import importlib.util
import math
import os
import pathlib

HERE = pathlib.Path(__file__).resolve().parent
loader = importlib.machinery.SourceFileLoader("compare", str(HERE / "compare"))
compare = importlib.util.module_from_spec(importlib.util.spec_from_loader("compare", loader))
loader.exec_module(compare)

MIB = 2**20
COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")
# Plots follow the reader's light or dark setting.
STYLE = ("<style>svg { color: #1c2333; --bg: #ffffff } "
         "@media (prefers-color-scheme: dark) { svg { color: #e6e9f2; --bg: #171a24 } }</style>")


def status(pid, field):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith(field + ":"):
            return int(line.split()[1])


def memory(pid):
    return status(pid, "VmRSS") * 1024


def threads(pid):
    return status(pid, "Threads")


def connections(pid):
    links = (pathlib.Path(f"/proc/{pid}/fd") / fd for fd in os.listdir(f"/proc/{pid}/fd"))
    return sum(os.readlink(link).startswith("socket:") for link in links)


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()  # The name may contain spaces.
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def plot(path, x_name, y_name, lines, values=True):
    """Writes an SVG plot of `lines`, lists of points by name. The x axis is logarithmic. Each point has its value, or the
    y axis has some values instead, which suits lines that are close to each other."""
    width, height, left, bottom = 480, 300, 60, 40
    points = [point for line in lines.values() for point in line]
    first, last = (math.log2(end(x for x, _ in points)) for end in (min, max))
    top = max(y for _, y in points) * 1.15

    def place(x, y):
        return (left + (width - left - 20) * (math.log2(x) - first) / max(1, last - first),
                height - bottom - (height - bottom - 20) * y / top)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
             f'viewBox="0 0 {width} {height}" font-family="sans-serif" '
             f'font-size="12" fill="currentColor">{STYLE}<rect width="100%" height="100%" fill="var(--bg)"/>',
             f'<path d="M{left},20 V{height - bottom} H{width - 20}" stroke="currentColor" fill="none"/>',
             f'<text x="{width / 2}" y="{height - 6}" text-anchor="middle">{x_name}</text>',
             f'<text x="14" y="{height / 2}" transform="rotate(-90 14 {height / 2})" text-anchor="middle">'
             f'{y_name}</text>']
    for x in sorted({x for x, _ in points}):
        parts.append(f'<text x="{place(x, 0)[0]:.0f}" y="{height - bottom + 16}" text-anchor="middle">{x}</text>')
    step = 10 ** math.floor(math.log10(top))
    for y in [] if values else [step * part for part in range(1, 10) if step * part <= top]:
        parts.append(f'<path d="M{left - 4},{place(1, y)[1]:.0f} h4" stroke="currentColor"/>'
                     f'<text x="{left - 8}" y="{place(1, y)[1] + 4:.0f}" text-anchor="end">{y:g}</text>')
    for number, (color, (name, line)) in enumerate(zip(COLORS, lines.items())):
        places = [place(x, y) for x, y in line]
        parts.append(f'<polyline fill="none" stroke="{color}" stroke-width="2" points="'
                     + " ".join(f"{x:.0f},{y:.0f}" for x, y in places) + '"/>')
        for (x, y), point in zip(places, line):
            parts.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="3" fill="{color}"/>')
            if values:
                parts[-1] += f'<text x="{x:.0f}" y="{y - 8:.0f}" text-anchor="middle">{point[1]:.0f}</text>'
        if len(lines) > 1:
            parts.append(f'<text x="{left + 12}" y="{30 + 16 * number}" fill="{color}">{name}</text>')
    pathlib.Path(path).write_text("\n".join(parts) + "\n</svg>\n")
