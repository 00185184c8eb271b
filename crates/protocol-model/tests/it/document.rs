//! `docs/protocol-model.md` tells what the code has.

use seckill_protocol_model::{INTERLEAVINGS, INVARIANTS, REMOVALS};

const DOCUMENT: &str = include_str!("../../../../docs/protocol-model.md");

#[test]
fn the_document_has_every_removal_and_every_run() {
    for (name, _) in INVARIANTS {
        assert!(DOCUMENT.contains(&name[..2]), "{name}");
    }
    for removal in REMOVALS {
        let row = removal.row();
        assert!(DOCUMENT.contains(&row), "missing: {row}");
    }
    for run in INTERLEAVINGS {
        let section = run.section();
        assert!(DOCUMENT.contains(&section), "missing:\n{section}");
    }
}
