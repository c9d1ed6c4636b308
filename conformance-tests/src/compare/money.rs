//! What locks cost where each request is paid for: requests, as `lockkit-store/tests/costs.rs` counts them,
//! times list prices.

use std::time::Duration;

use lockkit_core::Capabilities;
use lockkit_core::capabilities::WakeUp;

/// When the prices were written down.
const NOTED: &str = "November 2026";

/// US dollars for a million requests.
struct RequestPrices {
    backend: &'static str,
    write: f64,
    read: f64,
}

/// List prices: S3 Standard in us-east-1, Cloud Storage Standard in one region (operations of class A and B),
/// DynamoDB on demand in us-east-1 for documents of a kilobyte.
const PRICES: &[RequestPrices] = &[
    RequestPrices { backend: "s3", write: 5.0, read: 0.4 },
    RequestPrices { backend: "gcs", write: 5.0, read: 0.4 },
    RequestPrices { backend: "dynamodb", write: 0.625, read: 0.125 },
];

/// Lockkit's usual TTL is 30 s, renewed at a third of it.
const RENEWAL: Duration = Duration::from_secs(10);
const MONTH: f64 = 30.0 * 86_400.0;
const HOUR: f64 = 3_600.0;
/// A waiter reads its shard once a pace and when it is renewed, and the session of the holder now and then.
const READS_A_PACE: f64 = 1.5;

/// The titles of the rows.
pub(super) const ROWS: [&str; 3] =
    ["one lock, held for a month", "a million locks and releases", "one waiter, for an hour"];

/// What stands above the rows.
pub(super) fn note() -> String {
    format!(
        "For the requests of one process with a TTL of 30 s, at list prices as noted in {NOTED}: check them. \
         Computed, not billed; traffic, storage and larger documents come on top. A server of your own costs \
         the same whatever it is asked."
    )
}

/// Whether requests to this backend have prices.
pub(super) fn is_paid_by_request(capabilities: &Capabilities) -> bool {
    prices(capabilities).is_some()
}

/// The answers to the rows.
pub(super) fn costs(capabilities: &Capabilities) -> [String; 3] {
    let Some(RequestPrices { write, read, .. }) = prices(capabilities) else {
        return ROWS.map(|_| "–".to_owned());
    };
    let renewals = |seconds: f64| seconds / RENEWAL.as_secs_f64();
    let polls = match capabilities.wake_up {
        // Twice the pace.
        WakeUp::Poll { within } => HOUR / (within.as_secs_f64() / 2.0) * READS_A_PACE,
        _ => 0.0,
    };
    let held = renewals(MONTH) * (write + read);
    let waited = renewals(HOUR) * write + polls * read;
    [held, 2e6 * write, waited].map(|millionths| dollars(millionths / 1e6))
}

fn prices(capabilities: &Capabilities) -> Option<&'static RequestPrices> {
    PRICES.iter().find(|prices| prices.backend == capabilities.backend)
}

/// Two digits that mean something, at least.
fn dollars(amount: f64) -> String {
    match amount {
        a if a >= 0.1 => format!("${a:.2}"),
        a => format!("${a:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(backend: &'static str) -> [String; 3] {
        let mut capabilities = Capabilities::of(backend);
        capabilities.wake_up = WakeUp::Poll { within: Duration::from_secs(2) };
        costs(&capabilities)
    }

    #[test]
    fn requests_are_multiplied_by_prices() {
        assert_eq!(of("s3"), ["$1.40", "$10.00", "$0.0040"]);
        assert_eq!(of("dynamodb"), ["$0.19", "$1.25", "$0.0009"]);
        assert_eq!(of("redis"), ["–", "–", "–"]);
    }
}
