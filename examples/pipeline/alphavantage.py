"""Alpha Vantage, which limits with HTTP 200 and a note (H1, H6)."""

from harness import Received, Reply
from pipeline import env, pipeline

NOTE = {
    "Note": "Thank you for using Alpha Vantage! Our standard API call frequency is 5 calls per minute and 500 calls per day. "
    "Please visit https://www.alphavantage.co/premium/ if you would like to target a higher API call frequency."
}
PATH = "/alphavantage/query?function=TIME_SERIES_DAILY&symbol="


@pipeline.scenario("H1", "H6")
def alphavantage() -> None:
    provider = pipeline.play(lambda _: (200, {}, {"Meta Data": {}}))
    daemon = pipeline.serve(env(ALPHAVANTAGE_URL=provider.url))
    responses = [daemon.get(f"{PATH}{n}", timeout="1s") for n in range(6)]
    statuses, sixth = [one.status for one in responses], responses[-1].json()
    held = statuses == [200] * 5 + [429] and sixth["reason"] == "limit" and len(provider.log()) == 5
    pipeline.check("H1", "Alpha Vantage: five calls pass, the sixth of the minute is not sent", held, f"{statuses}, {len(provider.log())} sent")


@pipeline.scenario("H6")
def note_of_alphavantage() -> None:
    """Somebody else uses the key too: the third call is limited, with HTTP 200."""
    calls: list[Received] = []

    def reply(got: Received) -> Reply:
        calls.append(got)
        return 200, {}, NOTE if len(calls) > 2 else {"Meta Data": {}}

    provider = pipeline.play(reply)
    daemon = pipeline.serve(env(ALPHAVANTAGE_URL=provider.url))
    responses = [daemon.get(f"{PATH}{n}", timeout="2s") for n in range(3)]
    statuses, sent = [one.status for one in responses], len(provider.log())
    closed = daemon.provider("alphavantage")["health"]
    later = [daemon.get(f"{PATH}{n}", timeout="500ms") for n in (3, 4)]
    held = statuses == [200] * 3 and responses[2].json() == NOTE and (closed["count_2xx"], closed["count_429"]) == (2, 1)
    pipeline.check("H6", "its `Note` with HTTP 200 goes to the caller as it is, and counts as a 429", held, f"{sent} sent, count_429 {closed['count_429']}")
    reasons = [(one.status, one.json()["reason"]) for one in later]
    held = reasons == [(429, "cooldown")] * 2 and len(provider.log()) == 3 and all(one.json()["retryIn"] > 0 for one in later)
    seconds = later[0].json()["retryIn"] / 1000
    pipeline.check("H6", "and a cool-down of a minute: nothing is sent meanwhile", held and 50 < seconds <= 75, f"{len(provider.log())} sent, {seconds:.0f} s to go")
