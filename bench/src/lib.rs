//! Measurements of lockkit beside bare calls of equal effect. `cargo bench` in this folder; the
//! figures that matter are ratios within one run.
