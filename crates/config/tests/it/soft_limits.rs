//! What `tollgate check` says of limits that a store may lose.

use tollgate_config::Sources;
use tollgate_config::guarantee::store_assumption;

use crate::test_host::TestHost;

/// Never more than the store promises.
#[test]
fn check_says_which_limits_are_soft_in_which_store() {
    let said = |store: &str, limit: &str| {
        let machine = TestHost::new()
            .file("tollgate.yaml", &format!("store: \"{store}\"\n"))
            .file(
                "x.yaml",
                &format!("name: x\ndomain: api.example.org\nlimits: [{limit}]\n"),
            );
        let sources = Sources {
            providers: vec!["x.yaml".to_owned()],
            ..Sources::default()
        };
        let loaded = machine.loaded(&sources);
        let providers = &loaded.providers;
        let x = providers.iter().find(|one| one.provider.name == "x");
        let assumed = store_assumption(&loaded.config, &x.unwrap().provider);
        assumed.unwrap_or_default()
    };
    let (redis, postgres) = ("redis://r:6379/0", "postgres://u@p/d");
    for store in [redis, postgres] {
        assert_eq!(said(store, "100/59s"), "", "{store}");
        let long = said(store, "100/1m");
        assert!(
            long.starts_with("limits of a minute or longer are soft"),
            "{long}"
        );
    }
    assert!(said(redis, "100/1d").contains("`appendfsync always`"));
    assert!(said(postgres, "100/1d").contains("`synchronous_standby_names`"));
    for store in ["memory:", "sqlite:/var/lib/tollgate"] {
        assert_eq!(said(store, "100/1d"), "", "{store}");
    }
}
