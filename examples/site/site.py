"""A small static site, built from Markdown posts: change one post, and only its page and the index are built again.

runstate run examples/site/site.py:graph
"""

from __future__ import annotations

import html
import re
from pathlib import Path

from runstate.runtimes.orchestrator import Graph, Job, Output, RunView

here = Path(__file__).parent
posts = sorted((here / "posts").glob("*.md"))

graph = Graph("site", sources={f"posts/{post.name}": post for post in posts}, parallel=2)


def slugs(view: RunView) -> list[str]:
    """One scope for each post that the run knows."""
    return [Path(name).stem for name in view.artifacts() if name.startswith("posts/")]


def is_page(data: bytes) -> None:
    if not data.startswith(b"<!doctype html>"):
        raise ValueError("a page begins with <!doctype html>")


def page(title: str, body: str) -> str:
    return f"<!doctype html>\n<title>{html.escape(title)}</title>\n{body}\n"


reading = graph.node("reading", entry="READING", exit="READ")


@reading.worker(inputs=["posts/{scope}.md"], outputs=["parsed/{scope}.json"], scopes=slugs)
def parse(job: Job) -> None:
    """A post: its title is its first line, its paragraphs are separated by empty lines."""
    title, _, text = job.read("posts/{scope}.md").decode().partition("\n")
    paragraphs = [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]
    job.write_json("parsed/{scope}.json", {"title": title.removeprefix("# ").strip(), "paragraphs": paragraphs})


writing = graph.node("writing", entry="WRITING", exit="WRITTEN")


@writing.worker(
    inputs=["parsed/{scope}.json"],
    outputs=[Output("site/{scope}.html", "page/1", is_page)],
    scopes=slugs,
    timeout_s=30,
    attempts=2,
)
def write_page(job: Job) -> None:
    post = job.read_json("parsed/{scope}.json")
    body = "\n".join(f"<p>{html.escape(text)}</p>" for text in post["paragraphs"])
    job.write("site/{scope}.html", page(post["title"], f"<h1>{html.escape(post['title'])}</h1>\n{body}"))


@writing.worker(inputs=["parsed/{scope}.json"], outputs=[Output("site/index.html", "page/1", is_page)])
def write_index(job: Job) -> None:
    links = []
    for name in job.inputs:
        title = job.read_json(name)["title"]
        links.append(f'<li><a href="{Path(name).stem}.html">{html.escape(title)}</a></li>')
    job.write("site/index.html", page("All posts", "<ul>\n" + "\n".join(links) + "\n</ul>"))


checking = graph.node("checking", entry="CHECKING", exit="CHECKED")


def validate(job: Job) -> None:
    """Every title that ends with a full stop is an issue."""
    for number, line in enumerate(job.read("site/index.html").decode().split("\n"), 1):
        if line.endswith(".</a></li>"):
            where = {"path": "site/index.html", "line": number}
            job.report(f"full-stop-{number}", "a title ends with a full stop", location=where)


def fix(job: Job) -> None:
    lines = job.read("site/index.html").decode().split("\n")
    if job.issue_to_fix is not None and job.issue_to_fix.location is not None:
        place = job.issue_to_fix.location["line"] - 1
        lines[place] = lines[place].replace(".</a></li>", "</a></li>")
    job.write("site/index.html", "\n".join(lines))


checking.fix_loop(validate=validate, fix=fix, inputs=["site/index.html"], rewrites=["site/index.html"], rounds=5)
