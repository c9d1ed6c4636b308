//! What the page on semantics says of etcd is what its driver says.

use lockkit_conformance::{promises, semantics};
use lockkit_etcd::EtcdDriver;

#[test]
fn the_page_has_etcd_as_its_driver_states_it() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/semantics.md");
    let page = std::fs::read_to_string(page).unwrap();
    for (set_up, version) in [("etcd", "3.5.13"), ("etcd before 3.4.31, 3.5.13", "3.4.23")] {
        let capabilities = EtcdDriver::capabilities_with(version);
        for line in [semantics::row(set_up, capabilities), promises::row(set_up, capabilities)] {
            assert!(page.contains(&line), "put this line into docs/semantics.md:\n{line}");
        }
    }
}
