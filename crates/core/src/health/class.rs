//! Classifies the result of an attempt, with or without a response (A11).
//!
//! Promises: every status and every error has exactly one class. The verdict of the provider's
//! dialect takes precedence over the status, both ways.
//!
//! Never: reads a header or a body. `feedback` does; its verdict is an argument.

/// The class of one attempt's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// 2xx and 3xx: the provider works.
    Success,
    /// 429, or a limited call in the provider's own dialect.
    Limited,
    /// 5xx.
    ServerError,
    /// A timeout (408 too), DNS, or a connection that failed.
    Network,
    /// Every other 4xx: the caller's own fault. It says nothing about the provider's health.
    Other,
}

/// Why there is no response. The names are those of `requests_total{code}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// No connection, no head or no further byte in time.
    Timeout,
    /// The name has no address.
    Dns,
    /// No connection: refused, unreachable, TLS.
    Connect,
    /// The connection broke before the response was complete.
    Reset,
}

impl Class {
    /// By status. `limited` is the dialect's verdict: `Some(true)` makes an OMDb 401 or a GitHub
    /// 403 limited, `Some(false)` makes a 429 that is not about rates an ordinary 4xx, `None` lets
    /// the status decide.
    #[must_use]
    pub fn of_status(status: u16, limited: Option<bool>) -> Class {
        match (status, limited) {
            (_, Some(true)) | (429, None) => Class::Limited,
            (100..=399, _) => Class::Success,
            (408, _) => Class::Network,
            (500..=599, _) => Class::ServerError,
            (_, Some(false) | None) => Class::Other,
        }
    }

    /// By the reason why there is no response.
    #[must_use]
    pub fn of_fault(fault: Fault) -> Class {
        match fault {
            Fault::Timeout | Fault::Dns | Fault::Connect | Fault::Reset => Class::Network,
        }
    }

    /// Causes a back-off and counts against the provider.
    #[must_use]
    pub fn is_failure(self) -> bool {
        match self {
            Class::Limited | Class::ServerError | Class::Network => true,
            Class::Success | Class::Other => false,
        }
    }
}

impl Fault {
    /// The name in metrics and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Fault::Timeout => "timeout",
            Fault::Dns => "dns",
            Fault::Connect => "connect",
            Fault::Reset => "reset",
        }
    }
}
