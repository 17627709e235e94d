"""How to read each chart of a report, for somebody who sees it for the first time."""

EXPLANATIONS = {
    "limits": (
        "Compute: multiplications. Memory: reads and writes of the cores' own memory. Fabric: values on their way "
        "between cores. I/O: weights, gradients and samples on the links between the wafer and the hosts. Fill and "
        "drain: the first weight on its way to the wafer and the first value into a layer, the last one out. Step "
        "overhead: begin and end of a step, and filling the pipeline."
    ),
    "floorplan_pipelined": (
        "The wafer from above. In pipelined mode every layer has a rectangle of cores for the whole run; its cores "
        "hold its weights and activations. Layers with more work get more cores, so that all are equally fast. "
        "Samples flow through the layers strip by strip, from left to right."
    ),
    "floorplan_streaming": (
        "In weight streaming each layer has the whole wafer in turn, so there is no fixed place for a layer. Weights "
        "are kept outside: they arrive over the links, every core uses them on its own rows (tokens), and they are "
        "gone. The areas show what fills the memory of the cores when it is fullest: activations."
    ),
    "step_pipelined": (
        "The way of the first samples through the layers that hold a whole sample each. The pipeline fills from the "
        "top; a batch much larger than the number of these layers hides that."
    ),
    "step_streaming": (
        "Layers run one after another: forward from first to last, then backward from last to first. Weights arrive "
        "while a layer is computed, and its gradients leave. If transfers are longer than the work, the links limit "
        "the step. With several micro-batches this is one of them. The begin and end of a step are not drawn."
    ),
    "memory_pipelined": ("Weights, optimizer state and activations of all layers. It does not change during a step."),
    "memory_streaming": (
        "Activations that stay on the wafer: they grow in the forward pass and are given back in the backward pass. "
        "The dashed line is all there is; a batch that needs more is cut into micro-batches."
    ),
    "slowest": (
        "Time in one step. Pipelined layers work at the same time, and the slowest sets the pace; streamed layers "
        "follow each other, and their times add up."
    ),
    "slowest_parts": (
        "Compute, memory, fabric and I/O go on at the same time, so the longest of these bars counts. Fill and drain "
        "comes on top."
    ),
    "weights": (
        "In weight streaming these bytes cross the links in each pass; in pipelined mode they stay on the wafer."
    ),
    "scaling": (
        "Speed with several systems, each with a batch of its own. The band is the range of the figures; the dashed "
        "line is what one system would give times their number."
    ),
    "loss": ("The loss at each logged step of the run."),
    "speed": (
        "Samples per second since the last logged step, on the CPU or GPU of this machine. It says nothing "
        "about a CS-2; the simulated speed above does."
    ),
    "sparsity": (
        "The share of each sparse weight that is zero at the end of the run, and the share that the schedule asks for."
    ),
    "machine_step": (
        "Loads and stores move weights between the weight store and memory; compute and update run on the CPU. "
        "Overlapping bars are what one wants."
    ),
    "machine_memory": ("Bytes in use while the step runs."),
}
