//! `resp`: where the Redis protocol is spoken.

use tollgate_config::Sources;
use tollgate_config::config::ListenOn;

use crate::test_host::TestHost;

/// The Redis protocol: off, an address or a path, and no address that another listener has.
#[test]
fn the_address_of_the_redis_protocol_is_checked() {
    let file = |resp: &str| TestHost::new().file("tollgate.yaml", &format!("resp: {resp}\n"));
    let read = |resp: &str| file(resp).loaded(&Sources::default()).config.resp;
    assert_eq!(read("off"), None);
    let address = ListenOn::Address("127.0.0.1:6380".parse().unwrap());
    assert_eq!(read("':6380'"), Some(address));
    for (resp, part) in [
        ("here", "is neither an address with a port nor `unix:PATH`"),
        (
            "'unix:'",
            "is neither an address with a port nor `unix:PATH`",
        ),
        ("127.0.0.1:4290", "the gateway listens here too"),
    ] {
        let errors = file(resp).load_errors(&Sources::default());
        assert!(errors.contains(part), "{resp}: {errors}");
    }
    let provider = "name: x\ndomain: a.example.org\nlimits: [1/1s]\nlisten: 127.0.0.1:6380\n";
    let both = file("127.0.0.1:6380").file("x.yaml", provider);
    let sources = Sources {
        providers: vec!["x.yaml".to_owned()],
        ..Sources::default()
    };
    let errors = both.load_errors(&sources);
    assert!(
        errors.contains("the Redis protocol (`resp`) listens here too"),
        "{errors}"
    );
}
