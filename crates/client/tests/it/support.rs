//! A server on a thread, and the bits of results.

use pellucid_client::{ConnectOptions, RemoteModel};
use pellucid_engine::{Array, Capture, Generation, Run, SavedValue};
use pellucid_server::{ModelEntry, Server, ServerOptions, ShutdownHandle};
use std::thread::JoinHandle;

/// A server of golden cases, which ends when it is dropped.
pub struct TestServer {
    url: String,
    shutdown: ShutdownHandle,
    thread: Option<JoinHandle<pellucid_server::Result<()>>>,
}

impl TestServer {
    pub fn start(cases: &[golden::Case]) -> TestServer {
        let options = ServerOptions { address: ([127, 0, 0, 1], 0).into(), ..ServerOptions::default() };
        let entry = |case: &golden::Case| ModelEntry { id: case.name.clone(), loaded: case.loaded.clone() };
        let server = Server::bind(cases.iter().map(entry).collect(), options).expect("the server");
        let (url, shutdown) = (format!("http://{}/v1", server.address()), server.shutdown_handle());
        TestServer { url, shutdown, thread: Some(std::thread::spawn(move || server.run())) }
    }

    pub fn connect(&self, model: &str) -> RemoteModel {
        let options = ConnectOptions { token: None, model: Some(model.into()) };
        RemoteModel::connect(&self.url, options).expect("the model")
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.shutdown.shutdown();
        self.shutdown.shutdown();
        // A failed server has failed the test already.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Everything about a run that has bits, in one text per result.
pub fn bits_of_run(run: &Run) -> Vec<String> {
    let captures = run.captures.iter().map(bits_of_capture);
    let saved = run.saved.iter().map(bits_of_saved);
    let marks = run.marks.iter().map(|mark| format!("{mark:?}"));
    captures.chain(saved).chain(marks).chain([format!("{:?}", run.passed_over)]).collect()
}

/// Like [`bits_of_run`], with tokens and finish reasons.
pub fn bits_of_generation(generation: &Generation) -> Vec<String> {
    let rows = generation.rows.iter().map(|row| format!("{:?} {:?} {}", row.tokens, row.finish, row.non_finite));
    let captures = generation.captures.iter().map(bits_of_capture);
    let saved = generation.saved.iter().map(bits_of_saved);
    rows.chain(captures).chain(saved).chain([format!("{:?} {:?}", generation.marks, generation.passed_over)]).collect()
}

fn bits_of_capture(capture: &Capture) -> String {
    let Capture { site, tap, row, positions, array, units, sparse } = capture;
    format!("{site} {tap} {row} {positions:?} {} {:?} {sparse:?}", bits(array), units.as_ref().map(bits))
}

fn bits_of_saved(saved: &SavedValue) -> String {
    let SavedValue { value, row, step, array } = saved;
    format!("{value} {row:?} {step} {}", bits(array))
}

fn bits(array: &Array) -> String {
    // The payload of a NaN may depend on the order of operands.
    let of = |x: &f32| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() };
    let bits: Vec<u32> = array.values().iter().map(of).collect();
    format!("{:?} {:?} {} {bits:?}", array.shape(), array.dtype(), array.is_integer())
}
