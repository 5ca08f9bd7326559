"""Reports on logs, topics and clusters: backlogs, rates, sizes, keys, gaps, copies; with Spark or without.

| modules | what they are |
|---|---|
| `report`, `facts` | what every report is made of; what is known without reading a record |
| `local`, `onspark` | the two engines that run them |
| `rates` | what was appended per minute |
"""
