"""Makes small inline SVGs with Matplotlib that follow the page: its colours, its fonts, its width.

A figure is drawn twice, for a wide and for a narrow page, with text of one size; the page shows one
of the two. Colours are stand-ins that become CSS variables, so one drawing is right for light and dark.
Text stays text. It is laid out with DejaVu Sans, which is wider than the fonts that pages are read in.
"""

import html
import io
import re
from dataclasses import dataclass

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from tokline import kernels
from tokline.report.wording import compact

WIDE, NARROW = 860, 350  # pixels
FONT = 11.5
SMALL = 10.5
# Stand-ins for CSS variables. page.css has the light and the dark value of each.
COLOURS = {name: f"#0102{number:02x}" for number, name in enumerate(
    ["ink", "muted", "grid", "surface", "limit", "accent", "good", "bad",
     "k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"])}
INK, MUTED, GRID, SURFACE, LIMIT, ACCENT, GOOD, BAD = (
    COLOURS[name] for name in ("ink", "muted", "grid", "surface", "limit", "accent", "good", "bad"))
# A kernel is known by colour and marker: ten kernels, eight colours that colour-blind readers can tell
# apart. The decoder's ops take the colours in turn.
PALETTE = [COLOURS[f"k{number}"] for number in range(8)]
MARKERS = ["o", "s", "D", "^", "v", "P", "X", "p", ">", "<"]
STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "tokline", "font.family": ["DejaVu Sans"], "font.size": FONT,
    "axes.edgecolor": MUTED, "axes.labelcolor": INK, "axes.linewidth": 0.8, "axes.labelsize": FONT,
    "axes.titlesize": FONT, "axes.titlelocation": "left", "axes.titlecolor": INK, "axes.titlepad": 7.0,
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "axes.unicode_minus": True,
    "text.color": INK, "grid.color": GRID, "grid.linewidth": 0.8, "xtick.color": MUTED, "ytick.color": MUTED,
    "xtick.labelcolor": INK, "ytick.labelcolor": INK, "xtick.labelsize": SMALL, "ytick.labelsize": SMALL,
    "xtick.minor.size": 0, "ytick.minor.size": 0, "xtick.major.size": 3, "ytick.major.size": 0, "legend.frameon": False,
    "legend.fontsize": FONT, "lines.solid_capstyle": "round", "path.simplify": False,}


@dataclass
class Canvas:
    """A figure being drawn, `width` by `height` pixels."""
    narrow: bool
    height: float
    figure: Figure

    @property
    def width(self):
        return NARROW if self.narrow else WIDE

    def axes(self, left, top, width, height, **kwargs):
        """Axes at pixels from the top left corner."""
        rectangle = (left / self.width, 1 - (top + height) / self.height, width / self.width, height / self.height)
        return self.figure.add_axes(rectangle, facecolor="none", **kwargs)

    def text(self, x, y, words, **kwargs):
        """Text at pixels from the top left corner."""
        return self.figure.text(x / self.width, 1 - y / self.height, words, **kwargs)

    def text_width(self, words, size=FONT, weight="normal"):
        """In pixels."""
        probe = self.figure.text(0, 0, words, fontsize=size, fontweight=weight)
        width = probe.get_window_extent(renderer(self.figure)).width * 72 / self.figure.dpi
        probe.remove()
        return width

    def fitted(self, words, room, size=SMALL, weight="normal"):
        """Words cut to a width, with an ellipsis."""
        if self.text_width(words, size, weight) <= room:
            return words
        while words and self.text_width(words + "…", size, weight) > room:
            words = words[:-1]
        return words.rstrip(", ") + "…"

    def legend(self, handles):
        """Handles in one line at the top left."""
        self.figure.legend(handles=handles, loc="upper left", ncol=len(handles), bbox_to_anchor=(0.0, 1.0),
                           fontsize=SMALL, borderaxespad=0.1, handletextpad=0.4, columnspacing=1.4,
                           handlelength=1.4, handleheight=0.6)


@dataclass
class Drawing:
    """The SVGs of one figure, ready to be put into a page."""
    wide: str
    narrow: str


def kernel_look(name):
    """(colour, marker) of a kernel: the same in all plots and in all reports."""
    number, _ = kernels.order(name)
    if name not in kernels.names():
        number += sum(name.encode()) % 7
    return PALETTE[number % len(PALETTE)], MARKERS[number % len(MARKERS)]


def renderer(figure):
    return figure.canvas.get_renderer()


def draw(name, alternative, height, paint):
    """Draws a figure twice. `height(narrow)` is in pixels; `paint(canvas)` draws, and may return titles.

    Titles are {group id: [text of each point]}, which a pointer over a point shows.
    """
    drawings = []
    for narrow in (False, True):
        with matplotlib.rc_context(STYLE):
            pixels = height(narrow)
            figure = Figure(figsize=((NARROW if narrow else WIDE) / 72, pixels / 72), dpi=72)
            figure.patch.set_visible(False)
            FigureCanvasAgg(figure)
            canvas = Canvas(narrow, pixels, figure)
            titles = paint(canvas) or {}
            FigureCanvasSVG(figure)
            buffer = io.StringIO()
            figure.savefig(buffer, format="svg", transparent=False, metadata={"Date": None})
        identity = f"{name}-{'n' if narrow else 'w'}"
        drawings.append(inline(buffer.getvalue(), identity, alternative, titles))
    return Drawing(*drawings)


def inline(svg, identity, alternative, titles):
    """Matplotlib's SVG file as an element of a page: no header, no style of its own, page colours and fonts."""
    svg = svg[svg.index("<svg"):]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    width, height = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups()
    for group, words in titles.items():
        svg = titled(svg, group, words)
    # Only ids that something refers to stay, under a name that is unique in the page.
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
    svg = re.sub(r' id="([^"]+)"', lambda m: f' id="{identity}-{m[1]}"' if m[1] in used else "", svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{identity}-", svg)
    for name, colour in COLOURS.items():
        svg = svg.replace(colour, f"var(--{name})")
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    svg = re.sub(r"font: (?:\w+ )*([\d.]+px) [^;\"]*", r"font-size: \1", svg)
    # A hundredth of a pixel is enough; texts stay as they are.
    svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(?<=\d\.\d\d)\d+", "", tag[0]), svg)
    svg = re.sub(r">\s+<", "><", svg)
    body = svg[svg.index(">") + 1:].strip()
    return (f'<svg class="{"narrow" if identity.endswith("-n") else "wide"}" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" aria-label="{html.escape(alternative)}">{body}')


def titled(svg, group, words):
    """Gives each point of a scatter, drawn under the id `group`, a title."""
    start = svg.index(f'<g id="{group}"')
    end = start + matching_close(svg[start:])
    rest = iter(words)
    points = re.sub(r"(<use [^>]*)/>", lambda m: f"{m[1]}><title>{html.escape(next(rest))}</title></use>",
                    svg[start:end])
    return svg[:start] + points + svg[end:]


def matching_close(svg):
    """Where the <g> that opens `svg` is closed."""
    depth = 0
    for tag in re.finditer(r"<g\b|</g>", svg):
        depth += 1 if tag[0] == "<g" else -1
        if depth == 0:
            return tag.end()
    raise ValueError("the SVG has a <g> that is not closed")


def plain_log(axis, subs=(1.0,), base=10.0):
    """Ticks of a logarithmic axis as words, without exponents."""
    axis.set_major_locator(LogLocator(base=base, subs=subs, numticks=30))
    axis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))
    axis.set_minor_formatter(NullFormatter())


def place_labels(canvas, axes, anchors, obstacles=(), size=SMALL, **kwargs):
    """Writes (x, y, words) beside their points where there is room, and leaves out the others.

    `obstacles` are further points (x, y) in the axes' data that a label keeps clear of.
    """
    draw_area = axes.get_window_extent(renderer(canvas.figure))
    points = [axes.transData.transform(point) for point in [*obstacles, *[(x, y) for x, y, _ in anchors]]]
    taken = [text.get_window_extent(renderer(canvas.figure)) for text in axes.texts]
    for x, y, words in anchors:
        label = axes.annotate(words, (x, y), textcoords="offset points", xytext=(0, 0), fontsize=size,
                              annotation_clip=False,
                              arrowprops={"arrowstyle": "-", "color": MUTED, "linewidth": 0.8, "shrinkA": 0,
                                          "shrinkB": 4}, **kwargs)
        if not find_room(label, renderer(canvas.figure), draw_area, points, taken):
            label.remove()


def find_room(label, tool, draw_area, points, taken):
    for distance in (9, 16, 26, 38):
        for right, up in ((1, 0), (-1, 0), (0, 1), (0, -1), (0.7, 0.7), (-0.7, 0.7), (0.7, -0.7), (-0.7, -0.7)):
            label.set_position((right * distance, up * distance))
            label.set_horizontalalignment("left" if right > 0 else "right" if right < 0 else "center")
            label.set_verticalalignment("bottom" if up > 0 else "top" if up < 0 else "center")
            label.update_positions(tool)
            box = Text.get_window_extent(label, tool)  # without the line to its point
            inside = (box.x0 >= draw_area.x0 and box.x1 <= draw_area.x1 and box.y0 >= draw_area.y0
                      and box.y1 <= draw_area.y1)
            margin = box.padded(4)
            if inside and not any(margin.overlaps(other) for other in taken) and not any(
                    margin.x0 - 2 <= px <= margin.x1 + 2 and margin.y0 - 2 <= py <= margin.y1 + 2
                    for px, py in points):
                taken.append(box)
                return True
    return False
