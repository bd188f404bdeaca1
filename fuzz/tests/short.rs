//! A process of its own for each target, because a crash may be an abort.

#[test]
fn past_crashes_and_a_short_run_of_every_target_end_well() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_pellucid-fuzz")).arg("ci").output().expect("it runs");
    let report = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{report}");
    assert_eq!(report.matches(" executions ").count(), pellucid_fuzz::TARGETS.len(), "{report}");
}

#[test]
fn a_target_that_does_not_exist_is_reported() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_pellucid-fuzz")).args(["run", "x", "1"]).output();
    let output = output.expect("it runs");
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("no target `x`"));
}
