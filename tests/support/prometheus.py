"""Prometheus text 0.0.4: parsed, and judged by the rules of `promtool check metrics`.

parse(text) → {name: Metric}; AssertionError names the line that breaks the format or a rule.
"""

import math
import re

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"(,|$)')
SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)\Z")
TYPES = ("counter", "gauge", "histogram", "summary", "untyped")
# promtool wants base units, and no unit but at the end.
BAD_UNITS = re.compile(
    r"(milli|micro|nano|kilo|mega|giga)|(^|_)(ms|us|ns|kb|mb|gb|kib|mib|gib|minutes|hours|percent|bits)(_|$)"
)


class Metric:
    """help, type, and series: {(sample name, ((label, value), …)): number}."""

    def __init__(self, name):
        self.name, self.help, self.type, self.series = name, None, None, {}

    def value(self, suffix="", **labels):
        return self.series[(self.name + suffix, tuple(sorted(labels.items())))]

    def groups(self):
        """Series of a histogram by their labels but le."""
        found = {}
        for (name, labels), value in self.series.items():
            key = tuple(pair for pair in labels if pair[0] != "le")
            found.setdefault(key, []).append((name, dict(labels).get("le"), value))
        return found


def parse_labels(text, line):
    labels, at = {}, 0
    while at < len(text):
        match = LABEL.match(text, at)
        assert match, f"labels: {line}"
        assert match.group(1) not in labels, f"label twice: {line}"
        labels[match.group(1)] = match.group(2)
        at = match.end()
    return tuple(sorted(labels.items()))


def family_of(name, metrics):
    """The metric that a sample belongs to."""
    for suffix in ("_bucket", "_sum", "_count"):
        base = name[: -len(suffix)]
        if name.endswith(suffix) and base in metrics and metrics[base].type == "histogram":
            return base
    return name


def parse(text):
    assert text.endswith("\n"), "the text ends with a line end"
    metrics, current = {}, None
    for line in text[:-1].split("\n"):
        assert line == line.strip() and line, f"a blank at an end, or an empty line: {line!r}"
        if line.startswith("# HELP ") or line.startswith("# TYPE "):
            _, kind, name, words = line.split(" ", 3)
            assert NAME.match(name), line
            metric = metrics.setdefault(name, Metric(name))
            field = kind.lower()
            assert getattr(metric, field) is None, f"twice: {line}"
            assert not metric.series, f"after its samples: {line}"
            setattr(metric, field, words)
            current = name
            continue
        assert not line.startswith("#"), f"neither HELP nor TYPE: {line}"
        match = SAMPLE.match(line)
        assert match, f"no sample: {line}"
        name, labels, number = match.groups()
        family = family_of(name, metrics)
        assert family in metrics and metrics[family].type, f"a sample before its type: {line}"
        assert family == current, f"the series of a metric stand together: {line}"
        key = (name, parse_labels(labels or "", line))
        assert key not in metrics[family].series, f"a series twice: {line}"
        metrics[family].series[key] = float(number)
    for metric in metrics.values():
        check(metric)
    return metrics


def check(metric):
    name = metric.name
    assert metric.help and metric.type in TYPES, f"{name} lacks its help or type"
    assert not BAD_UNITS.search(name), f"{name}: base units"
    assert re.match(r"[a-z][a-z0-9_]*\Z", name), f"{name}: snake case"
    total = name.endswith("_total")
    assert total == (metric.type == "counter"), f"{name}: counters and only they end in _total"
    for suffix in ("_bucket", "_count", "_sum"):
        assert not name.endswith(suffix), f"{name}: a suffix of histograms"
    for word in ("counter", "gauge", "histogram"):
        assert word not in name, f"{name}: the type is no part of the name"
    for (sample, labels), value in metric.series.items():
        assert not math.isnan(value), sample
        if metric.type == "counter":
            assert value >= 0, f"{sample} {labels}"
        if metric.type != "histogram":
            assert "le" not in dict(labels), f"{sample}: le is for histograms"
    if metric.type == "histogram":
        for labels, samples in metric.groups().items():
            check_histogram(name, labels, samples)


def check_histogram(name, labels, samples):
    buckets = [(le, value) for sample, le, value in samples if sample == name + "_bucket"]
    bounds = [float(le) for le, _ in buckets]
    counts = [value for _, value in buckets]
    (count,) = [value for sample, _, value in samples if sample == name + "_count"]
    (total,) = [value for sample, _, value in samples if sample == name + "_sum"]
    assert bounds == sorted(set(bounds)), f"{name} {labels}: bounds rise"
    assert bounds and bounds[-1] == math.inf, f"{name} {labels}: the last bound is +Inf"
    assert counts == sorted(counts), f"{name} {labels}: buckets are cumulative"
    assert counts[-1] == count, f"{name} {labels}: +Inf is the count"
    assert total >= 0, f"{name} {labels}: the sum"
