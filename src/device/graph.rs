//! Graphs: what a stream is given, recorded and launched in one piece.

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{self, CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode};
use cudarc::driver::{CudaStream, DriverError, result};

use super::launched::Launched;
use super::{DeviceError, Gpu, Parameter, Plan, driver};

/// Topologies that stay instantiated, at most: a handful of passes, each by the kernels that its batches take.
const KEPT: usize = 16;

/// A piece of work, as far as an instantiated graph cannot become one of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// A kernel, by family and name: grid, shared memory and parameter may be others each time.
    Kernel(&'static str, &'static str),
    /// Zeros for a buffer.
    Clear,
    /// A copy on the device.
    Copy,
}

/// What has been recorded so far of a graph.
#[derive(Debug)]
struct Recording {
    /// What it is of, for messages.
    what: &'static str,
    nodes: Vec<Node>,
    last: Option<Launched>,
}

/// The graphs of one GPU.
#[derive(Debug, Default)]
pub(super) struct Graphs {
    /// Whether graphs were asked for.
    pub on: bool,
    /// While a graph is recorded.
    recording: Mutex<Option<Recording>>,
    /// Instantiated graphs by topology, the one launched longest ago first.
    instances: Mutex<VecDeque<(Vec<Node>, Instance)>>,
    launches: AtomicU64,
}

impl Graphs {
    fn recording(&self) -> MutexGuard<'_, Option<Recording>> {
        self.recording.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a graph is being recorded.
    pub fn is_recording(&self) -> bool {
        self.recording().is_some()
    }

    /// Notes down what was recorded, if anything is.
    pub fn note(&self, node: Node) {
        if let Some(recording) = &mut *self.recording() {
            recording.nodes.push(node);
        }
    }

    /// Notes down a launch, if one is recorded; whether it is.
    pub fn note_launch<P: Parameter>(&self, plan: &Plan, parameter: &P) -> bool {
        let mut recording = self.recording();
        let Some(recording) = &mut *recording else { return false };
        recording.nodes.push(Node::Kernel(plan.family, plan.kernel));
        Launched::remember(&mut recording.last, plan, parameter);
        true
    }
}

/// A graph as the driver recorded it.
struct Recorded(sys::CUgraph);

impl Drop for Recorded {
    fn drop(&mut self) {
        // SAFETY: it is not used again. What is wrong with the device is told by the next call.
        let _ = unsafe { result::graph::destroy(self.0) };
    }
}

/// A graph that can be launched.
#[derive(Debug)]
struct Instance {
    exec: sys::CUgraphExec,
    /// Keeps its context alive.
    stream: Arc<CudaStream>,
}

// SAFETY: the driver lets any thread use it, one at a time; it is only reached under a lock.
unsafe impl Send for Instance {}

impl Instance {
    fn new(stream: &Arc<CudaStream>, graph: &Recorded) -> Result<Self, DriverError> {
        // SAFETY: the graph is alive.
        let exec = unsafe { result::graph::instantiate(graph.0, CUgraphInstantiate_flags(0)) }?;
        Ok(Instance { exec, stream: stream.clone() })
    }

    /// Has the next launches do what was recorded; false where that is another topology to the driver.
    fn update(&self, graph: &Recorded) -> Result<bool, DriverError> {
        let mut info = MaybeUninit::uninit();
        // SAFETY: both are alive, and what the driver finds is written to memory for it.
        let updated = unsafe { sys::cuGraphExecUpdate_v2(self.exec, graph.0, info.as_mut_ptr()) };
        match updated.result() {
            Ok(()) => Ok(true),
            Err(DriverError(CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, ..)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn launch(&self) -> Result<(), DriverError> {
        // SAFETY: both are alive; what its kernels touch is as the launches demanded that were recorded.
        unsafe { result::graph::launch(self.exec, self.stream.cu_stream()) }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        driver::make_current(&self.stream);
        // SAFETY: it is not used again; what was launched runs on.
        let _ = unsafe { result::graph::exec_destroy(self.exec) };
    }
}

/// Ends a recording that was not launched: what it had is gone, and the stream takes work again.
struct Abandon<'a>(&'a Gpu);

impl Drop for Abandon<'_> {
    fn drop(&mut self) {
        if self.0.graphs.recording().take().is_some() {
            // The reason why nothing is launched is told already.
            let _ = self.0.end_capture();
        }
    }
}

impl Gpu {
    /// Has `queue` queue launches, and clearing and copies on the device, and launches all of it in one piece, where graphs
    /// were [asked for](super::choice::KernelChoice::graphs); `what` it is of, for messages. Queues piece by piece where each
    /// launch is timed or waited for, and from the first kernel on that has not been used before: it has to be loaded, which
    /// no recording allows. The results are the same. No other thread may use the GPU meanwhile.
    ///
    /// # Errors
    ///
    /// What `queue` fails with, nothing of it having run then but what came before a kernel that had to be loaded; what the
    /// driver refuses; a graph inside of another.
    pub fn graph<R>(
        &self,
        what: &'static str,
        queue: impl FnOnce() -> Result<R, DeviceError>,
    ) -> Result<R, DeviceError> {
        self.check_outside_graph(what)?;
        if !self.launches_graphs() || self.profile.is_on() {
            return queue();
        }
        let failed = |error| self.failed(&format!("recording the graph of {what}"), error);
        self.stream
            .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            .map_err(failed)?;
        *self.graphs.recording() = Some(Recording { what, nodes: Vec::new(), last: None });
        let _abandon = Abandon(self);
        let result = queue()?;
        self.launch_recorded()?;
        Ok(result)
    }

    /// Whether what [`graph`](Self::graph) is given becomes one.
    pub fn launches_graphs(&self) -> bool {
        self.graphs.on && !self.waits_for_launches
    }

    /// Graphs launched so far.
    pub fn graph_launches(&self) -> u64 {
        self.graphs.launches.load(Ordering::Relaxed)
    }

    /// Refuses what would be lost on the host if it became part of a graph.
    pub(super) fn check_outside_graph(&self, action: &str) -> Result<(), DeviceError> {
        match &*self.graphs.recording() {
            None => Ok(()),
            Some(recording) => Err(DeviceError::InGraph { action: action.to_owned(), graph: recording.what }),
        }
    }

    /// Launches what has been recorded, if anything is; what comes next is queued piece by piece.
    pub(super) fn launch_recorded(&self) -> Result<(), DeviceError> {
        let Some(Recording { what, nodes, mut last }) = self.graphs.recording().take() else { return Ok(()) };
        let failed = |action: &str, error| self.failed(&format!("{action} the graph of {what}"), error);
        let graph = self.end_capture().map_err(|error| failed("recording", error))?;
        if nodes.is_empty() {
            return Ok(());
        }
        let kernels = nodes.iter().filter(|node| matches!(node, Node::Kernel(..))).count();
        let mut instances = self.graphs.instances.lock().unwrap_or_else(PoisonError::into_inner);
        let place = instances.iter().position(|(topology, _)| *topology == nodes);
        let known = place.and_then(|place| instances.remove(place)).map(|(_, instance)| instance);
        let instance = match known {
            Some(known) if known.update(&graph).map_err(|error| failed("updating", error))? => known,
            _ => Instance::new(&self.stream, &graph).map_err(|error| failed("instantiating", error))?,
        };
        instance.launch().map_err(|error| failed("launching", error))?;
        if instances.len() == KEPT {
            instances.pop_front();
        }
        instances.push_back((nodes, instance));
        self.graphs.launches.fetch_add(1, Ordering::Relaxed);
        self.count_launches(kernels as u64);
        if let Some(last) = &mut last {
            last.graph = Some((what, kernels));
        }
        self.set_last(last);
        Ok(())
    }

    fn end_capture(&self) -> Result<Recorded, DriverError> {
        self.bound()?;
        // SAFETY: the stream is alive.
        unsafe { result::stream::end_capture(self.stream.cu_stream()) }.map(Recorded)
    }
}
