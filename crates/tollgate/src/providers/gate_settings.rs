//! Converts the queue settings of a provider file to those of its gate.
//!
//! Promises: converts every setting; a number above the gate's maximum becomes that maximum.
//!
//! Never: has its own defaults. Those are in the file.

use tollgate_config::Provider;
use tollgate_config::settings as file;
use tollgate_core::ask::Priority;
use tollgate_core::gate::{GateSettings, OffPeak, Order};

/// The gate settings of a provider.
pub(super) fn for_provider(provider: &Provider) -> GateSettings {
    let off_peak = provider.off_peak.as_ref().and_then(|hours| {
        // The file check has rejected hours that do not exist.
        let window = OffPeak::new(hours.from_minute, hours.to_minute, hours.zone.clone()).ok()?;
        Some(window.applies_up_to(match hours.applies_to {
            file::Confined::Low => Priority::Low,
            file::Confined::Normal => Priority::Normal,
            file::Confined::High => Priority::High,
        }))
    });
    GateSettings {
        waiting_max: usize::try_from(provider.queue.max).unwrap_or(usize::MAX),
        order: match provider.queue.order {
            file::Order::Priority => Order::Priority,
            file::Order::Fifo => Order::Fifo,
        },
        off_peak,
        ..GateSettings::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_config::{Environment, ProviderFile};

    #[test]
    fn without_queue_settings_the_gate_defaults_apply() {
        let file = "domain: api.example.org\nlimit: 5\nperiod: 1s\n";
        let draft = ProviderFile::read("x.yaml", file).unwrap();
        let provider = draft.check(&Environment::empty()).provider.unwrap();
        let (ours, default) = (for_provider(&provider), GateSettings::default());
        assert_eq!(
            (ours.waiting_max, ours.order),
            (default.waiting_max, default.order)
        );
        assert!(ours.off_peak.is_none());
    }

    /// M12: the hours and the priority they apply to reach the gate.
    #[test]
    fn m12_off_peak_hours_apply_to_the_configured_priority() {
        for (word, expected) in [
            ("low", Priority::Low),
            ("normal", Priority::Normal),
            ("high", Priority::High),
        ] {
            let file = format!(
                "domain: api.example.org\nlimit: 5\nperiod: 1s\n\
                 off_peak: {{hours: \"01:00-06:00\", timezone: Europe/Berlin, applies_to: {word}}}\n"
            );
            let draft = ProviderFile::read("x.yaml", &file).unwrap();
            let provider = draft.check(&Environment::empty()).provider.unwrap();
            let hours = for_provider(&provider).off_peak.expect("hours");
            assert_eq!(hours.max_priority(), expected);
        }
    }
}
