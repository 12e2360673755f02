//! Faults of kernels that hardware would not report.

use super::open;

const IO: &str = "@group(0) @binding(0) var<storage, read> x: array<u32>;
    @group(0) @binding(1) var<storage, read_write> y: array<u32>;
    var<workgroup> numbers: array<u32, 64>;
    @compute @workgroup_size(64) fn main(@builtin(local_invocation_index) thread: u32) ";

#[test]
fn faults_of_kernels_are_reported() {
    for (body, words) in [
        ("{ y[thread] = x[thread + 1u]; }", "an index of a buffer: 64 of 64"),
        ("{ numbers[thread * x[1]] = 1u; y[thread] = 0u; }", "an index of an array: 64 of 64"),
        (
            "{ if (x[thread] < 5u) { return; } workgroupBarrier(); y[thread] = 1u; }",
            "some threads of a block ended",
        ),
        (
            "{ if (x[thread] < 5u) { workgroupBarrier(); } else { workgroupBarrier(); } y[thread] = 1u; }",
            "wait at different barriers",
        ),
    ] {
        let Some(opened) = open() else { return };
        // They are not uniform, which naga does not know of buffers.
        let input: Vec<u32> = (0..64).map(|i| if i == 1 { 1 } else { i * 2 }).collect();
        let input: Vec<u32> = if words.contains("array") { vec![64; 64] } else { input };
        opened.submit(&format!("{IO}{body}"), &input, 64, 1, &[]);
        let errors = opened.errors();
        assert_eq!(errors.len(), 1, "{body}: {errors:?}");
        assert!(errors[0].starts_with("lost") && errors[0].contains(words), "{body}: {errors:?}");
    }
}

/// Shared memory that was not written is NaN, and a missing barrier shows in one of two blocks.
#[test]
fn races_change_results() {
    let Some(opened) = open() else { return };
    let body = "{ y[thread] = numbers[63u - thread]; numbers[thread] = x[thread]; }";
    let found = opened.run(&format!("{IO}{body}"), &[1; 64], 64, 2);
    assert!(found.contains(&u32::MAX) && found.contains(&1), "{found:?}");
}

#[test]
fn wrong_calls_are_errors_and_not_undefined() {
    use wgpu::BufferUsages as Usage;
    let Some(opened) = open() else { return };
    let all = Usage::STORAGE | Usage::COPY_SRC | Usage::COPY_DST;
    let [a, b] = [64, 32].map(|size| opened.buffer(size, all));
    let submit = |record: &dyn Fn(&mut wgpu::CommandEncoder)| {
        let mut encoder = opened.device.create_command_encoder(&Default::default());
        record(&mut encoder);
        opened.queue.submit([encoder.finish()]);
        opened.errors().join("; ")
    };
    let error = submit(&|encoder| encoder.copy_buffer_to_buffer(&a, 0, &b, 0, 64));
    assert!(error.contains("64 bytes from 0 on are not in a buffer of 32"), "{error}");
    opened.queue.write_buffer(&b, 16, &[0; 20]);
    assert!(opened.errors().join("; ").contains("written outside a buffer"));
    a.destroy();
    let error = submit(&|encoder| encoder.copy_buffer_to_buffer(&a, 0, &b, 0, 32));
    assert!(error.contains("destroyed"), "{error}");
    let (layout, _) = opened.pipeline("not WGSL", 0);
    assert!(opened.errors().join("; ").contains("not valid WGSL"));
    let entry = |binding| wgpu::BindGroupEntry { binding, resource: b.as_entire_binding() };
    let entries = [entry(0), entry(1)];
    let descriptor = wgpu::BindGroupDescriptor { label: None, layout: &layout, entries: &entries };
    let _ = opened.device.create_bind_group(&descriptor);
    assert!(opened.errors().join("; ").contains("read only and written"));
    // A scope catches what is for it, and no handler sees it.
    let scope = opened.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
    drop(opened.buffer(3 << 30, all));
    assert!(pollster::block_on(scope.pop()).is_some() && opened.errors().is_empty());
    opened.device.destroy();
    assert!(opened.errors().join("; ").contains("lost (Destroyed)"));
}

#[test]
fn nothing_runs_if_one_command_is_wrong() {
    use wgpu::BufferUsages as Usage;
    let Some(opened) = open() else { return };
    let from = opened.buffer(64, Usage::COPY_SRC | Usage::COPY_DST);
    let staging = opened.buffer(64, Usage::MAP_READ | Usage::COPY_DST);
    opened.queue.write_buffer(&from, 0, &[1; 64]);
    let record = |bytes| {
        let mut encoder = opened.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(&from, 0, &staging, 0, bytes);
        encoder.finish()
    };
    opened.queue.submit([record(64), record(65)]);
    assert!(opened.errors().join("; ").contains("are not in a buffer"));
    assert_eq!(opened.read(&staging), [0; 16]);
}

#[test]
fn kernels_run_on_their_own_device_with_the_bindings_that_they_declare() {
    use wgpu::BufferUsages as Usage;
    let (Some(one), Some(other)) = (open(), open()) else { return };
    let (layout, pipeline) = one.pipeline(&format!("{IO}{{ y[thread] = x[thread]; }}"), 0);
    let (other_layout, of_other) = other.pipeline(&format!("{IO}{{ y[thread] = 5u; }}"), 0);
    // It reads what the layout says is written.
    let reads = IO.replace("binding(1)", "binding(3)").replace("binding(0)", "binding(1)");
    let reads = reads.replace("binding(3)", "binding(0)");
    let (_, turned) = one.pipeline(&format!("{reads}{{ y[thread] = x[thread]; }}"), 0);
    let dispatch = |opened: &super::Opened, layout, pipeline| {
        let [a, b] = [256, 256].map(|size| opened.buffer(size, Usage::STORAGE));
        let entries = [(0, &a), (1, &b)].map(|(binding, buffer)| wgpu::BindGroupEntry {
            binding,
            resource: buffer.as_entire_binding(),
        });
        let group = opened.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout,
            entries: &entries,
        });
        let mut encoder = opened.device.create_command_encoder(&Default::default());
        {
            let mut pass = encoder.begin_compute_pass(&Default::default());
            pass.set_pipeline(pipeline);
            pass.set_bind_group(0, &group, &[]);
            pass.dispatch_workgroups(1, 1, 1);
        }
        opened.queue.submit([encoder.finish()]);
        opened.errors().join("; ")
    };
    assert_eq!(dispatch(&one, &layout, &pipeline), "");
    assert_eq!(dispatch(&other, &other_layout, &of_other), "");
    let error = dispatch(&one, &layout, &of_other);
    assert!(error.contains("of another device"), "{error}");
    let error = dispatch(&one, &layout, &turned);
    assert!(error.contains("only the layout or only the kernel writes"), "{error}");
}

#[test]
fn shaders_that_are_not_trusted_are_refused() {
    let Some(opened) = open() else { return };
    let source = wgpu::ShaderSource::Wgsl(format!("{IO}{{ y[thread] = x[thread]; }}").into());
    let descriptor = wgpu::ShaderModuleDescriptor { label: None, source };
    let _ = opened.device.create_shader_module(descriptor);
    assert!(opened.errors().join("; ").contains("trusted ones only"));
}
