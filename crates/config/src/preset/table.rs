//! The files of `providers/`, built in.
//!
//! Promises: every file of that folder is listed once, under its own name; a test compares both.
//!
//! Never: holds anything that is not in the folder.

/// Name and text of every preset, by name.
pub(super) const FILES: &[(&str, &str)] = &[
    (
        "airtable",
        include_str!("../../../../providers/airtable.yaml"),
    ),
    (
        "alphavantage",
        include_str!("../../../../providers/alphavantage.yaml"),
    ),
    (
        "anthropic",
        include_str!("../../../../providers/anthropic.yaml"),
    ),
    ("arxiv", include_str!("../../../../providers/arxiv.yaml")),
    ("aws", include_str!("../../../../providers/aws.yaml")),
    (
        "azure_arm",
        include_str!("../../../../providers/azure_arm.yaml"),
    ),
    (
        "azure_openai",
        include_str!("../../../../providers/azure_openai.yaml"),
    ),
    (
        "binance",
        include_str!("../../../../providers/binance.yaml"),
    ),
    ("brave", include_str!("../../../../providers/brave.yaml")),
    (
        "cloudflare",
        include_str!("../../../../providers/cloudflare.yaml"),
    ),
    (
        "cloudru",
        include_str!("../../../../providers/cloudru.yaml"),
    ),
    (
        "coinbase",
        include_str!("../../../../providers/coinbase.yaml"),
    ),
    (
        "cosmosdb",
        include_str!("../../../../providers/cosmosdb.yaml"),
    ),
    (
        "crossref",
        include_str!("../../../../providers/crossref.yaml"),
    ),
    (
        "discogs",
        include_str!("../../../../providers/discogs.yaml"),
    ),
    (
        "discord",
        include_str!("../../../../providers/discord.yaml"),
    ),
    ("fanart", include_str!("../../../../providers/fanart.yaml")),
    (
        "fanart-personal",
        include_str!("../../../../providers/fanart-personal.yaml"),
    ),
    ("fmp", include_str!("../../../../providers/fmp.yaml")),
    ("gemini", include_str!("../../../../providers/gemini.yaml")),
    ("github", include_str!("../../../../providers/github.yaml")),
    ("gitlab", include_str!("../../../../providers/gitlab.yaml")),
    ("groq", include_str!("../../../../providers/groq.yaml")),
    (
        "hubspot",
        include_str!("../../../../providers/hubspot.yaml"),
    ),
    ("ip_api", include_str!("../../../../providers/ip_api.yaml")),
    ("jira", include_str!("../../../../providers/jira.yaml")),
    ("kraken", include_str!("../../../../providers/kraken.yaml")),
    ("lastfm", include_str!("../../../../providers/lastfm.yaml")),
    (
        "lemlist",
        include_str!("../../../../providers/lemlist.yaml"),
    ),
    ("local", include_str!("../../../../providers/local.yaml")),
    (
        "mailerlite",
        include_str!("../../../../providers/mailerlite.yaml"),
    ),
    (
        "mistral",
        include_str!("../../../../providers/mistral.yaml"),
    ),
    (
        "musicbrainz",
        include_str!("../../../../providers/musicbrainz.yaml"),
    ),
    (
        "newsapi",
        include_str!("../../../../providers/newsapi.yaml"),
    ),
    (
        "nominatim",
        include_str!("../../../../providers/nominatim.yaml"),
    ),
    ("notion", include_str!("../../../../providers/notion.yaml")),
    ("okta", include_str!("../../../../providers/okta.yaml")),
    ("omdb", include_str!("../../../../providers/omdb.yaml")),
    (
        "omdb-paid",
        include_str!("../../../../providers/omdb-paid.yaml"),
    ),
    ("openai", include_str!("../../../../providers/openai.yaml")),
    (
        "openweather",
        include_str!("../../../../providers/openweather.yaml"),
    ),
    (
        "polygon",
        include_str!("../../../../providers/polygon.yaml"),
    ),
    (
        "prisjakt",
        include_str!("../../../../providers/prisjakt.yaml"),
    ),
    ("pubmed", include_str!("../../../../providers/pubmed.yaml")),
    ("reddit", include_str!("../../../../providers/reddit.yaml")),
    ("riot", include_str!("../../../../providers/riot.yaml")),
    (
        "salesforce",
        include_str!("../../../../providers/salesforce.yaml"),
    ),
    (
        "semanticscholar",
        include_str!("../../../../providers/semanticscholar.yaml"),
    ),
    (
        "shopify_graphql",
        include_str!("../../../../providers/shopify_graphql.yaml"),
    ),
    (
        "shopify_rest",
        include_str!("../../../../providers/shopify_rest.yaml"),
    ),
    ("slack", include_str!("../../../../providers/slack.yaml")),
    (
        "sportmonks",
        include_str!("../../../../providers/sportmonks.yaml"),
    ),
    (
        "spotify",
        include_str!("../../../../providers/spotify.yaml"),
    ),
    ("steam", include_str!("../../../../providers/steam.yaml")),
    ("stripe", include_str!("../../../../providers/stripe.yaml")),
    ("tmdb", include_str!("../../../../providers/tmdb.yaml")),
    (
        "tmdb-legacy",
        include_str!("../../../../providers/tmdb-legacy.yaml"),
    ),
    ("trakt", include_str!("../../../../providers/trakt.yaml")),
    ("tvdb", include_str!("../../../../providers/tvdb.yaml")),
    ("twitch", include_str!("../../../../providers/twitch.yaml")),
    (
        "wikipedia",
        include_str!("../../../../providers/wikipedia.yaml"),
    ),
    ("x", include_str!("../../../../providers/x.yaml")),
    ("yahoo", include_str!("../../../../providers/yahoo.yaml")),
    (
        "zendesk",
        include_str!("../../../../providers/zendesk.yaml"),
    ),
];
