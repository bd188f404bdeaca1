#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pellucid_fuzz::run("requests", data));
