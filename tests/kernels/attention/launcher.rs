//! What the launcher refuses.

use half::bf16;
use setrank::device::choice::Fusion;
use setrank::device::{Buffer, DeviceError, Gpu, Uploads};
use setrank::ops::attention::{
    AttentionPlan, AttentionScratch, DeviceAttention, Heads, Qkv, QkvGradients, Roles, attention_backward,
    attention_forward,
};
use setrank_emulator::driver::{self, Configuration};

const HEADS: Heads = Heads { count: 2, width: 64 };

/// Runs on the first of two devices.
fn on_a_gpu(run: impl FnOnce(&Gpu)) {
    let configuration = Configuration { devices: 2, ..Configuration::default() };
    driver::with(&configuration, |_| run(&Gpu::new(0).unwrap())).unwrap();
}

/// Sets of 3 and 2 documents, and buffers of every size that they need.
struct Batch {
    attention: DeviceAttention,
    scratch: AttentionScratch,
    q: Buffer<bf16>,
    kv: Buffer<bf16>,
    qkv: Buffer<bf16>,
    heads: Buffer<bf16>,
    log_sum_exp: Buffer<f32>,
    d_heads: Buffer<bf16>,
    d_q: Buffer<bf16>,
    d_kv: Buffer<bf16>,
    delta: Buffer<f32>,
}

/// A plan in a package that is as large as the bound says.
fn on_device(gpu: &Gpu, roles: Roles, offsets: &[usize]) -> Result<DeviceAttention, DeviceError> {
    let (sets, documents) = (offsets.len().saturating_sub(1), offsets.last().copied().unwrap_or(0));
    let bytes = AttentionPlan::bytes_bound(sets, documents, roles, Fusion::All);
    let room = gpu.arena("a plan", bytes)?.room(bytes)?;
    Uploads::default()
        .send(gpu, room, |package| DeviceAttention::new(package, gpu.limits(), roles, offsets, HEADS))
}

impl Batch {
    fn new(gpu: &Gpu, roles: Roles, offsets: &[usize]) -> Self {
        let mut arena = gpu.arena("a batch", 8 << 20).unwrap();
        let attention = on_device(gpu, roles, offsets).unwrap();
        let plan = attention.plan();
        let (queries, keys, outputs) = (plan.query_rows, plan.key_rows, plan.output_rows);
        let hidden = HEADS.hidden();
        let mut take = |rows: usize| {
            let mut buffer = arena.take(rows * hidden).unwrap();
            gpu.upload(&mut buffer, &vec![bf16::ONE; rows * hidden]).unwrap();
            buffer
        };
        let [q, kv, qkv, heads] = [queries, 2 * keys, queries + 2 * keys, outputs].map(&mut take);
        let [d_heads, d_q, d_kv] = [outputs, outputs, 2 * keys].map(&mut take);
        let [log_sum_exp, delta] = [(); 2].map(|()| arena.take(outputs * HEADS.count).unwrap());
        let scratch = AttentionScratch::new(&mut arena, attention.plan().scratch_len(), true).unwrap();
        Batch { attention, scratch, q, kv, qkv, heads, log_sum_exp, d_heads, d_q, d_kv, delta }
    }

    fn forward(&mut self, gpu: &Gpu) -> Result<(), DeviceError> {
        let qkv = Qkv::Apart { q: &self.q, kv: &self.kv };
        let Batch { attention, scratch, heads, log_sum_exp, .. } = self;
        attention_forward(gpu, attention, scratch, qkv, heads, log_sum_exp, None)
    }

    fn backward(&mut self, gpu: &Gpu) -> Result<(), DeviceError> {
        let qkv = Qkv::Apart { q: &self.q, kv: &self.kv };
        let gradients = QkvGradients::Apart { q: &mut self.d_q, kv: &mut self.d_kv };
        let (attention, log_sum_exp, delta) = (&self.attention, &self.log_sum_exp, &mut self.delta);
        let (d_heads, heads) = (&self.d_heads, &self.heads);
        attention_backward(
            gpu,
            attention,
            &self.scratch,
            gradients,
            d_heads,
            qkv,
            heads,
            log_sum_exp,
            delta,
            false,
            None,
        )
    }
}

#[test]
fn forward_refuses_what_does_not_fit() {
    on_a_gpu(|gpu| {
        let refused = |change: &dyn Fn(&mut Batch), part: &str| {
            let mut batch = Batch::new(gpu, Roles::Documents, &[0, 3, 5]);
            batch.forward(gpu).unwrap();
            change(&mut batch);
            let message = batch.forward(gpu).unwrap_err().to_string();
            assert!(message.contains("attention, forward") && message.contains(part), "{message}");
        };
        refused(&|batch| batch.q = batch.q.part(0..632).unwrap(), "q [H, Nq, D] has 632 values, not 640");
        refused(&|batch| batch.kv = batch.kv.part(0..0).unwrap(), "kv [2, H, Nk, D] has 0 values, not 1280");
        refused(
            &|batch| batch.heads = batch.kv.part(0..640).unwrap(),
            "heads [Nq, H·D] and kv [2, H, Nk, D] share",
        );
        refused(
            &|batch| batch.log_sum_exp = batch.log_sum_exp.part(0..8).unwrap(),
            "log-sum-exp [H, Nq] has 8 values, not 10",
        );
        let other = Gpu::new(1).unwrap();
        let theirs = || Batch::new(&other, Roles::Documents, &[0, 3, 5]);
        refused(&|batch| batch.attention = theirs().attention, "groups: a buffer of another GPU");
        refused(
            &|batch| batch.log_sum_exp = theirs().log_sum_exp,
            "log-sum-exp [H, Nq]: a buffer of another GPU",
        );
        refused(&|batch| batch.heads = theirs().heads, "heads [Nq, H·D]: a buffer of another GPU");
        let unfused = Gpu::new(0).unwrap().with_fusion(Fusion::None);
        let mut batch = Batch::new(&unfused, Roles::Documents, &[0, 3, 5]);
        batch.forward(&unfused).unwrap();
        batch.scratch = Batch::new(gpu, Roles::Documents, &[0, 3, 5]).scratch;
        let message = batch.forward(&unfused).unwrap_err().to_string();
        assert!(message.contains("scores [H, pairs] has 0 values, not 80 or more"), "{message}");
        let few = Roles::Induce { points: 7 };
        let mut batch = Batch::new(gpu, few, &[0, 3, 1200]);
        batch.forward(gpu).unwrap();
        batch.scratch = Batch::new(gpu, few, &[0, 3, 5]).scratch;
        let message = batch.forward(gpu).unwrap_err().to_string();
        let part = "partial sums [parts, H, 64·D] has 0 values, not 16384 or more";
        assert!(message.contains(part), "{message}");
        gpu.synchronize().unwrap();
    });
}

#[test]
fn backward_refuses_what_does_not_fit() {
    on_a_gpu(|gpu| {
        let refused = |change: &dyn Fn(&mut Batch), part: &str| {
            let mut batch = Batch::new(gpu, Roles::Induce { points: 7 }, &[0, 3, 5]);
            batch.forward(gpu).unwrap();
            batch.backward(gpu).unwrap();
            change(&mut batch);
            let message = batch.backward(gpu).unwrap_err().to_string();
            assert!(message.contains("attention, backward") && message.contains(part), "{message}");
        };
        refused(&|batch| batch.q = batch.q.part(0..640).unwrap(), "q [H, Nq, D] has 640 values, not 896");
        refused(
            &|batch| batch.d_q = batch.d_q.part(0..896).unwrap(),
            "d q [H, Nq, D] has 896 values, not 1792",
        );
        refused(
            &|batch| batch.d_kv = batch.d_kv.part(8..16).unwrap(),
            "d kv [2, H, Nk, D] has 8 values, not 1280",
        );
        refused(
            &|batch| batch.delta = batch.delta.part(0..4).unwrap(),
            "delta [H, Nq] has 4 values, not 28 or more",
        );
        refused(
            &|batch| batch.d_heads = batch.q.part(0..8).unwrap(),
            "d heads [Nq, H·D] has 8 values, not 1792",
        );
        refused(
            &|batch| batch.d_q = batch.d_heads.part(0..1792).unwrap(),
            "d q [H, Nq, D] and d heads [Nq, H·D] share",
        );
        refused(
            &|batch| batch.delta = batch.log_sum_exp.part(0..28).unwrap(),
            "delta [H, Nq] and log-sum-exp [H, Nq] share",
        );
        let other = Gpu::new(1).unwrap();
        let theirs = || Batch::new(&other, Roles::Induce { points: 7 }, &[0, 3, 5]);
        refused(&|batch| batch.d_kv = theirs().d_kv, "d kv [2, H, Nk, D]: a buffer of another GPU");
        refused(&|batch| batch.heads = theirs().heads, "heads [Nq, H·D]: a buffer of another GPU");
        gpu.synchronize().unwrap();
    });
}

#[test]
fn queries_keys_and_values_are_together_among_documents_alone() {
    on_a_gpu(|gpu| {
        for (roles, right) in [
            (Roles::Documents, true),
            (Roles::Induce { points: 5 }, false),
            (Roles::Attend { points: 5 }, false),
        ] {
            let mut batch = Batch::new(gpu, roles, &[0, 5]);
            let Batch { attention, scratch, qkv, heads, log_sum_exp, .. } = &mut batch;
            let result =
                attention_forward(gpu, attention, scratch, Qkv::Together(qkv), heads, log_sum_exp, None);
            match result {
                Ok(()) => assert!(right, "{roles:?}"),
                Err(error) => {
                    assert!(!right && error.to_string().contains("among documents alone"), "{error}")
                }
            }
        }
        let mut short = Batch::new(gpu, Roles::Documents, &[0, 5]);
        let Batch { attention, scratch, q, heads, log_sum_exp, .. } = &mut short;
        let error = attention_forward(gpu, attention, scratch, Qkv::Together(q), heads, log_sum_exp, None)
            .unwrap_err();
        assert!(error.to_string().contains("qkv [3, H, N, D] has 640 values, not 1920"), "{error}");
        gpu.synchronize().unwrap();
    });
}

#[test]
fn nothing_is_launched_for_nothing() {
    on_a_gpu(|gpu| {
        let nothing = [
            (Roles::Documents, &[0, 0][..]),
            (Roles::Attend { points: 3 }, &[0, 0]),
            (Roles::Induce { points: 3 }, &[0]),
        ];
        for (roles, offsets) in nothing {
            let mut batch = Batch::new(gpu, roles, offsets);
            batch.forward(gpu).unwrap();
            batch.backward(gpu).unwrap();
            // Of points that nobody attends to.
            assert!(gpu.download(&batch.d_kv).unwrap().iter().all(|&value| value == bf16::ZERO));
        }
    });
}

#[test]
fn plans_that_cannot_be_are_refused() {
    on_a_gpu(|gpu| {
        for (roles, offsets) in
            [(Roles::Documents, &[0, 3, 2][..]), (Roles::Induce { points: 3 }, &[0, 2, 2])]
        {
            assert!(on_device(gpu, roles, offsets).is_err());
        }
        // Of parts too the package has room.
        let long = [0, 5, 1030, 3000, 9000];
        for points in [1, 32] {
            for roles in [Roles::Induce { points }, Roles::Attend { points }] {
                assert_eq!(on_device(gpu, roles, &long).unwrap().plan().parts.tiles.len(), 2 + 2 + 6);
            }
        }
        // What the bound says is enough, and not by much too much.
        let offsets: Vec<usize> = (0..=40).map(|set| set * 129).collect();
        for roles in [Roles::Documents, Roles::Induce { points: 128 }, Roles::Attend { points: 128 }] {
            let bytes = AttentionPlan::bytes_bound(40, 40 * 129, roles, Fusion::All);
            let attention = on_device(gpu, roles, &offsets).unwrap();
            let plan = attention.plan();
            let groups = &plan.forward_groups.tiles;
            let tiles = [groups, &plan.backward_sets, &plan.d_query_tiles, &plan.d_key_tiles];
            assert!(bytes <= 4 * 32 * tiles.iter().map(|tiles| tiles.len()).sum::<usize>(), "{roles:?}");
        }
    });
}
