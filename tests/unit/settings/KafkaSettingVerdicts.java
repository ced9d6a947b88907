// Asks Apache Kafka's own ConfigDef what it makes of values. Each line on standard input is a table (broker, topic), a
// setting and a value in base64, separated by tabs; each line of output is `ok` and the value as Kafka would show it in
// base64, or `no` and the reason.
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.common.config.types.Password;
import org.apache.kafka.server.config.AbstractKafkaConfig;
import org.apache.kafka.storage.internals.log.LogConfig;

public class KafkaSettingVerdicts {
    public static void main(String[] args) throws IOException {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            String[] fields = line.split("\t", -1);
            ConfigDef all = fields[0].equals("topic") ? LogConfig.configDefCopy() : AbstractKafkaConfig.CONFIG_DEF;
            ConfigDef.ConfigKey key = all.configKeys().get(fields[1]);
            String value = new String(Base64.getDecoder().decode(fields[2]), StandardCharsets.UTF_8);
            try {
                Object parsed = new ConfigDef().define(key).parse(Map.of(fields[1], value)).get(fields[1]);
                String shown = parsed instanceof Password p ? p.value() : ConfigDef.convertToString(parsed, key.type);
                System.out.println("ok\t" + Base64.getEncoder().encodeToString(shown.getBytes(StandardCharsets.UTF_8)));
            } catch (ConfigException e) {
                System.out.println("no\t" + e.getMessage().replace('\n', ' '));
            }
        }
    }
}
