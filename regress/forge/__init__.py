"""What code forges (GitHub, GitLab) show of a gate: Markdown, annotations, JUnit, and GitHub's REST interface.

Everything works from the gate's JSON alone (`regress.result`), so it can run in another job, on another machine and
without a GPU. That JSON may come from an artifact that somebody else's code wrote: it is data, decoded against its
types, and every text in it is escaped for the place it is shown in.
"""
